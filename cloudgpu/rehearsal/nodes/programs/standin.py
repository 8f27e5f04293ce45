"""Replacement for a command that would change the machine: asks the node host and prints its reply.

Run as `python3 -I -S standin.py PROGRAM [ARGUMENT...]`. The socket lies in `CLOUDGPU_NODE_RUN`, else in
`/run/cloudgpu`. The question is its fields with a zero byte between them, up to the end of the stream: program, number
of arguments, arguments, then name and text of each unit file. The answer is a line with the exit status and the
lengths of the two outputs, then both of them.

A node's boot runs it many times, and importing more than this takes three times as long as all the rest: hence
`_socket`, which `socket` only dresses up, and neither `json` nor `pathlib`.
"""

import os
import sys
from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system")
_UNIT_LIMIT_BYTES = 65536
_ANSWER_BYTES = 65536
_LIMIT_S = 60


def main() -> int:
    """Send the request, print the reply, and return the exit status."""
    program, arguments = sys.argv[1], sys.argv[2:]
    fields = [program, str(len(arguments)), *arguments]
    question = b"\0".join([*(os.fsencode(field) for field in fields), *_units(program, arguments)])
    try:
        head, _, rest = _ask(question).partition(b"\n")
        status, stdout_bytes, stderr_bytes = (int(figure) for figure in head.split())
    except (OSError, ValueError) as err:
        sys.stderr.write(f"{program}: simulated, and the node host does not answer: {err}\n")
        return 1
    sys.stdout.buffer.write(rest[:stdout_bytes])
    sys.stderr.buffer.write(rest[stdout_bytes : stdout_bytes + stderr_bytes])
    return status


def _ask(question: bytes) -> bytes:
    # Use a relative name, because the full path of the socket may exceed the kernel's limit.
    os.chdir(os.environ.get("CLOUDGPU_NODE_RUN", "/run/cloudgpu"))
    peer = socket(AF_UNIX, SOCK_STREAM)
    try:
        peer.settimeout(_LIMIT_S)
        peer.connect("node.sock")
        peer.sendall(question)
        peer.shutdown(SHUT_WR)
        answer = b""
        while part := peer.recv(_ANSWER_BYTES):
            answer += part
        return answer
    finally:
        peer.close()


def _units(program: str, arguments: list[str]) -> list[bytes]:
    """Return names and texts of the unit files that a `systemctl` command names, so that the host can set timers."""
    if program != "systemctl":
        return []
    found = []
    for argument in arguments:
        stem, _, kind = argument.rpartition(".")
        if kind == "timer" and stem and "/" not in argument:
            for name in (argument, f"{stem}.service"):
                text = _unit(name)
                if text:
                    found += [os.fsencode(name), text]
    return found


def _unit(name: str) -> bytes:
    root = os.environ.get("CLOUDGPU_NODE_ROOT") or "/"
    for folder in _UNIT_FOLDERS:
        path = os.path.join(root, folder, name)  # noqa: PTH118  pathlib is one of the slow imports
        if os.path.isfile(path):  # noqa: PTH113
            with open(path, "rb") as stream:  # noqa: PTH123
                return stream.read(_UNIT_LIMIT_BYTES).replace(b"\0", b"")
    return b""


if __name__ == "__main__":
    sys.exit(main())
