"""Stands in for a command that would change the machine: asks the node host, prints what it answers.

Run as `python3 -I -S standin.py PROGRAM [ARGUMENT...]`. The socket lies in `CLOUDGPU_NODE_RUN`, else in
`/run/cloudgpu`.
"""

import json
import os
import socket
import sys
from pathlib import Path

_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system")
_UNIT_LIMIT_BYTES = 65536


def main() -> int:
    """Ask, print, and return the exit status."""
    program, arguments = sys.argv[1], sys.argv[2:]
    request: dict[str, object] = {"program": program, "arguments": arguments, "units": _units(program, arguments)}
    try:
        answer = _ask(request)
    except (OSError, ValueError) as err:
        sys.stderr.write(f"{program}: simulated, and the node host does not answer: {err}\n")
        return 1
    sys.stdout.write(answer["stdout"])
    sys.stderr.write(answer["stderr"])
    return int(answer["exit_code"])


def _ask(request: dict[str, object]) -> dict[str, str]:
    # The socket is reached by a relative name, because its full path may be longer than the kernel takes.
    os.chdir(os.environ.get("CLOUDGPU_NODE_RUN", "/run/cloudgpu"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(60)
        peer.connect("node.sock")
        with peer.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            answer: dict[str, str] = json.loads(stream.readline())
    return answer


def _units(program: str, arguments: list[str]) -> dict[str, str]:
    """Unit files that a `systemctl` command names, so that the host can arm the timers in them."""
    if program != "systemctl":
        return {}
    found = {}
    for argument in arguments:
        stem, _, kind = argument.rpartition(".")
        if kind == "timer" and stem and "/" not in argument:
            for name in (argument, f"{stem}.service"):
                text = _unit(name)
                if text:
                    found[name] = text
    return found


def _unit(name: str) -> str:
    root = Path(os.environ.get("CLOUDGPU_NODE_ROOT") or "/")
    for folder in _UNIT_FOLDERS:
        path = root / folder / name
        if path.is_file():
            with path.open("rb") as stream:
                return stream.read(_UNIT_LIMIT_BYTES).decode(errors="replace")
    return ""


if __name__ == "__main__":
    sys.exit(main())
