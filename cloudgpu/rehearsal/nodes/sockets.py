"""Bind and connect Unix sockets. On Linux, paths may exceed the kernel's limit for socket paths."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cloudgpu.errors import RehearsalError

AGENT_SOCKET = "agent.sock"
"""Socket in a node's run directory. The SSM agent uses it to reach the SSH server despite security group rules."""
_LIMIT_BYTES = 100
"""Maximum length of a path that is used directly. The kernel's limit is 107 bytes on Linux and 103 on macOS."""


def connect(path: Path, timeout_s: float | None) -> socket.socket:
    """Connect to a Unix socket and return the stream socket."""
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(timeout_s)
    try:
        with _short(path) as short:
            peer.connect(short)
    except BaseException:
        peer.close()
        raise
    return peer


def bind(path: Path) -> socket.socket:
    """Bind a non-blocking stream socket that only the current user may connect to. An existing file is replaced."""
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as short:
            server.bind(short)
        path.chmod(0o600)
    except BaseException:
        server.close()
        raise
    server.settimeout(0)
    return server


@contextmanager
def _short(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) <= _LIMIT_BYTES:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        message = f"the path {path} is too long for a socket on this system"
        raise RehearsalError(message, hint="set CLOUDGPU_HOME to a directory with a shorter path")
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{parent}/{path.name}"
    finally:
        os.close(parent)
