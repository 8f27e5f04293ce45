"""Save what a failed node printed: its console output and its bootstrap log, in the folder of the run or cluster.

The texts come from nodes, so they are bounded and printable. Saving them never hides the failure itself.
"""

from pathlib import Path

from cloudgpu import files
from cloudgpu.text import command, printable

MOST_NODES = 8
"""Number of failed nodes whose logs are saved."""
MOST_BYTES = 256 * 1024
"""Size limit of one saved file; the end of a longer text is kept. EC2 returns at most 64 KiB of a console."""


def node_log(folder: Path, index: int, what: str) -> Path:
    """Return the path of a saved log: `nodes/node-0-console.log` below the folder of the run or cluster."""
    return folder / "nodes" / f"node-{index}-{what}.log"


def save_node_log(path: Path, text: str) -> Path | None:
    """Write a log and return its path, or None if there is nothing to save or the file cannot be written."""
    lines = text[-MOST_BYTES:].replace("\r\n", "\n").replace("\r", "\n").splitlines()
    kept = "".join(f"{printable(line)}\n" for line in lines).encode()[-MOST_BYTES:].decode(errors="ignore").encode()
    if not kept.strip():
        return None
    try:
        files.make_private_directory(path.parent)
        files.replace(path, kept, durable=False)
    except OSError:
        return None
    return path


def mention(hint: str, saved: list[Path]) -> str:
    """Return a hint that begins with the saved files: both of a single node, or the folder of several nodes."""
    if not saved:
        return hint
    single = len({path.name.split("-")[1] for path in saved}) == 1
    files = " and ".join(command(str(path)) for path in saved)
    where = files if single else f"the {len(saved)} files in {command(str(saved[0].parent))}"
    return f"read {where}; {hint}" if hint else f"read {where}"
