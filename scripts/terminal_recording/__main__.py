"""Record the quickstart and write the picture."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from terminal_recording.capture import record
from terminal_recording.frames import merge_frames, shorten_pauses, text_of
from terminal_recording.svg import render_svg

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ("train", "recipes/quickstart", "--on", "rehearsal", "--yes")
"""What `scripts/quickstart` runs."""
COLUMNS, ROWS = 100, 32
INTERVAL_S = 0.4
PAUSE_S = 1.5
HOLD_S = 10.0
MOST_BYTES = 60_000


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a user on a colour terminal whose home is new."""
    dropped = ("AWS_", "CLOUDGPU_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        kept.pop(name, None)
    for variable, file in (("PIP_CONFIG_FILE", "pip/pip.conf"), ("UV_CONFIG_FILE", "uv/uv.toml")):
        path = Path.home() / ".config" / file
        if path.is_file():
            kept.setdefault(variable, str(path))
    cache = os.environ.get("CLOUDGPU_ENV_CACHE", str(ROOT / ".cache/envs"))
    return {**kept, "HOME": str(home), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "CLOUDGPU_ENV_CACHE": cache}


def main() -> int:
    """Write the picture to the path that is the only argument; return the exit status."""
    program = str(Path(sys.executable).with_name("cloudgpu"))
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(Path(folder))
        try:
            prompt = f"$ cloudgpu {' '.join(COMMAND)}"
            code, frames = record([program, *COMMAND], environ, columns=COLUMNS, rows=ROWS, prompt=prompt)
        finally:
            subprocess.run([program, "rehearsal", "stop"], env=environ, check=False, stdout=subprocess.DEVNULL)
        private = [folder, str(ROOT), str(Path.home()), socket.gethostname()]
    last = text_of(frames[-1].rows)
    if code:
        print(f"recording: the quickstart exited with status {code}:\n{last}", file=sys.stderr)
        return 1
    shown = shorten_pauses(merge_frames(frames, INTERVAL_S), PAUSE_S)
    picture = render_svg(
        shown, columns=COLUMNS, title=f"Recording of a terminal: cloudgpu {' '.join(COMMAND)}", hold_s=HOLD_S
    )
    found = [name for name in private if name in picture]
    if found or len(picture.encode()) > MOST_BYTES:
        print(f"recording: {len(picture.encode())} bytes; names of this machine: {found}", file=sys.stderr)
        return 1
    Path(sys.argv[1]).write_text(picture, encoding="utf-8")
    print(f"{last}\n\nrecording: {len(shown)} frames, {len(picture.encode())} bytes in {sys.argv[1]}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
