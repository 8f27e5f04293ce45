"""Build the agent as one file: a reproducible zip archive of the agent's modules, which Python runs like a script."""

import hashlib
import io
import zipfile
from functools import cache
from pathlib import Path

_PACKAGE = "cloudgpu_agent"
_MAIN = f"from {_PACKAGE}.main import entry\n\nentry()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@cache
def agent_source() -> bytes:
    """Return the content of the file that is copied to the nodes and run as `python3 FILE VERB`."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        agent = Path(__file__).parent / "agent"
        for module in sorted(agent.rglob("*.py")):
            if module != agent / "__main__.py":
                _add(archive, f"{_PACKAGE}/{module.relative_to(agent).as_posix()}", module.read_bytes())
    return packed.getvalue()


@cache
def agent_name() -> str:
    """Return the agent's file name.

    The name contains a hash of the content, so that a new version does not replace the file that a run in progress
    uses.
    """
    return f"agent-{hashlib.sha256(agent_source()).hexdigest()[:16]}.py"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.create_system = 3  # makes the archive identical on every platform
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
