"""Replacement for a simulated command: sends the command line to the node host and prints the reply.

Run as `python3 -I -S standin.py PROGRAM [ARGUMENT...]`. The socket `node.sock` is in the directory
`CLOUDGPU_NODE_RUN`, by default `/run/cloudgpu`. A request consists of fields separated by zero bytes, up to the end of
the stream: program, number of arguments, arguments, then the name and text of each unit file. A response is a line with
the exit status and the byte counts of standard output and standard error, followed by both outputs.

The boot of a node runs this program many times, and importing `socket`, `json` or `pathlib` would take three times as
long as everything else. The program therefore uses only `_socket`, on which `socket` is built.
"""

import os
import sys
from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system")
_UNIT_LIMIT_BYTES = 65536
_RESPONSE_BYTES = 65536
_LIMIT_S = 60


def main() -> int:
    """Send the request, print the reply, and return the exit status."""
    program, arguments = sys.argv[1], sys.argv[2:]
    fields = [program, str(len(arguments)), *arguments]
    request = b"\0".join([*(os.fsencode(field) for field in fields), *_units(program, arguments)])
    try:
        head, _, rest = _send(request).partition(b"\n")
        status, stdout_bytes, stderr_bytes = (int(number) for number in head.split())
    except (OSError, ValueError) as err:
        sys.stderr.write(f"{program}: simulated, but the node host does not respond: {err}\n")
        return 1
    sys.stdout.buffer.write(rest[:stdout_bytes])
    sys.stderr.buffer.write(rest[stdout_bytes : stdout_bytes + stderr_bytes])
    return status


def _send(request: bytes) -> bytes:
    # Use a relative name, because the full path of the socket may exceed the kernel's limit.
    os.chdir(os.environ.get("CLOUDGPU_NODE_RUN", "/run/cloudgpu"))
    peer = socket(AF_UNIX, SOCK_STREAM)
    try:
        peer.settimeout(_LIMIT_S)
        peer.connect("node.sock")
        peer.sendall(request)
        peer.shutdown(SHUT_WR)
        response = b""
        while part := peer.recv(_RESPONSE_BYTES):
            response += part
        return response
    finally:
        peer.close()


def _units(program: str, arguments: list[str]) -> list[bytes]:
    """Return the names and texts of a `systemctl` command's timer units and of the services that the timers start."""
    if program != "systemctl":
        return []
    units = []
    for argument in arguments:
        stem, _, kind = argument.rpartition(".")
        if kind == "timer" and stem and "/" not in argument:
            for name in (argument, f"{stem}.service"):
                text = _unit(name)
                if text:
                    units += [os.fsencode(name), text]
    return units


def _unit(name: str) -> bytes:
    root = os.environ.get("CLOUDGPU_NODE_ROOT") or "/"
    for folder in _UNIT_FOLDERS:
        path = os.path.join(root, folder, name)  # noqa: PTH118 - importing pathlib is slow
        if os.path.isfile(path):  # noqa: PTH113
            with open(path, "rb") as stream:  # noqa: PTH123
                return stream.read(_UNIT_LIMIT_BYTES).replace(b"\0", b"")
    return b""


if __name__ == "__main__":
    sys.exit(main())
