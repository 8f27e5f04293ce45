"""Choose the loopback addresses of nodes, and bind and connect their sockets, including Unix sockets."""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cloudgpu.errors import RehearsalError

SSH_PORT = 2222
METADATA_PORT = 1338
_FIRST, _LAST = 2, 254
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
AGENT_SOCKET = "agent.sock"
"""Socket in a node's run directory. The SSM agent uses it to reach the SSH server despite security group rules."""
_LIMIT_BYTES = 100
"""Maximum length of a path that is used directly. The kernel's limit is 107 bytes on Linux and 103 on macOS."""


@dataclass(frozen=True)
class BoundAddress:
    """A loopback address with its two bound sockets. The metadata socket already listens, to reserve the address."""

    address: str
    ssh: socket.socket
    metadata: socket.socket

    @property
    def port(self) -> int:
        """Port of the SSH server."""
        return int(self.ssh.getsockname()[1])

    @property
    def metadata_port(self) -> int:
        """Port of the metadata service."""
        return int(self.metadata.getsockname()[1])

    def close(self) -> None:
        """Close both sockets."""
        self.ssh.close()
        self.metadata.close()


def claim_free_address(directory: Path, preferred: str, used: set[str]) -> BoundAddress:
    """Bind the preferred address if it is free, else the next free one, else free ports on 127.0.0.1."""
    for address in chain((preferred,) if preferred else (), _candidates(directory)):
        if address in used:
            continue
        try:
            return bind_address(address, SSH_PORT, METADATA_PORT)
        except OSError as err:
            if err.errno == errno.EADDRNOTAVAIL:
                break
            if err.errno not in _TAKEN:
                raise RehearsalError(f"cannot bind {address}: {err.strerror}") from err
    try:
        return bind_address("127.0.0.1", 0, 0)
    except OSError as err:
        raise RehearsalError(f"no loopback port is free for a node: {err.strerror}") from err


def bind_address(address: str, port: int, metadata_port: int) -> BoundAddress:
    """Bind the SSH and metadata sockets of an address, and listen on the metadata socket."""
    metadata = _bound(address, metadata_port)
    try:
        metadata.listen(64)
        return BoundAddress(address, _bound(address, port), metadata)
    except BaseException:
        metadata.close()
        raise


def rebind_ssh_port(old: BoundAddress, port: int) -> BoundAddress:
    """Bind an address's SSH port again, because closing the SSH server closed the socket."""
    old.ssh.close()
    return BoundAddress(old.address, _bound(old.address, port), old.metadata)


def _candidates(directory: Path) -> Iterator[str]:
    """Yield addresses 127.x.y.z with x and y derived from the state home, so that state homes rarely collide."""
    digest = hashlib.sha256(str(directory).encode()).digest()
    second = 16 + digest[0] % 224
    for step in range(256):
        third = (digest[1] + step) % 256
        for fourth in range(_FIRST, _LAST + 1):
            yield f"127.{second}.{third}.{fourth}"


def _bound(address: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A rebooting node needs the same port, while connections of the stopped node may still be in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address, port))
        bound.settimeout(0)
    except BaseException:
        bound.close()
        raise
    return bound


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
