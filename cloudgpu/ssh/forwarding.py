"""Forward connections: from a local port to a node, and to a node through the user's SSH jump host or a proxy command.

The jump host's key comes from pinned fingerprints or from the user's `known_hosts` files.
"""

import contextlib
import errno
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloudgpu.errors import ConnectError, HostKeyError, SshSetupError, StateError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import FailureCallback, ignore_failure
from cloudgpu.ssh.handshake import Opened
from cloudgpu.ssh.known_hosts import SSH_PORT, authority_note, known_keys
from cloudgpu.ssh.transport import LOST, OrderlyChannel
from cloudgpu.text import command

_BASTION = -1
"""Node index of the jump host, which is not a node of the cluster."""
_TERMINATE_S = 5.0
_CHUNK_BYTES = 1 << 16
_HERE = "127.0.0.1"
_BACKLOG = 256
_FIRST_UNPRIVILEGED = 1024
_ABOVE_PRIVILEGED = 8000
_LAST = 65535
_FULL_PAUSE_S = 0.2
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value with which `close` resets the connection: the client sees an error instead of the end of the data."""


def bastion(address: str, known_hosts: Sequence[Path], pinned: tuple[str, ...] = (), key: str = "") -> Node:
    """Return the jump host at the address `user@host` or `user@host:port`.

    Args:
        address: Login user, host name or IP address, and optional port.
        known_hosts: Files that contain the jump host's keys. Used only if `pinned` is empty.
        pinned: Fingerprints of the jump host's keys.
        key: Path of the private key; empty for the caller's default key.
    """
    user, _, server = address.partition("@")
    host, port = _split(server)
    keys = pinned or known_keys(host, port, known_hosts)
    if not keys:
        where = " or ".join(str(path) for path in known_hosts if path.is_file()) or str(known_hosts[0])
        connect = command("ssh", *([] if port == SSH_PORT else ["-p", str(port)]), f"{user}@{host}")
        note = authority_note(host, port, known_hosts)
        message = f"the host key of the bastion {host}:{port} is not in {where}{note}"
        raise HostKeyError(message, hint=f"connect once with `{connect}`, and verify the fingerprint")
    return Node(_BASTION, "bastion", host, port, user, keys, host, "", "", "", 0, simulated=False, key=key)


def _split(server: str) -> tuple[str, int]:
    """Split `host`, `host:port`, `[v6]` or `[v6]:port` into host and port."""
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        return host, int(rest.removeprefix(":") or SSH_PORT)
    host, _, port = server.partition(":")
    return host, int(port or SSH_PORT)


class TcpConnector(Protocol):
    """A way to open TCP connections to hosts that the caller cannot reach. `SshHost` implements this protocol."""

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:
        """Open a connection to an address and port, as seen from the remote end of this connector.

        Raises:
            ConnectError: The connection failed.
        """


CarrierOf = Callable[[Node], TcpConnector | None]
"""Returns the connector for a node, or None if the node is directly reachable."""


@dataclass(frozen=True)
class CarryingCommand:
    """A proxy command, whose standard input and output are the connection, as with OpenSSH's `ProxyCommand`.

    Attributes:
        environ: Complete environment. Secrets belong here rather than in `argv`, which is visible in process lists.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]

    def __repr__(self) -> str:
        return f"CarryingCommand(argv={self.argv!r})"


class ProgramCarrier:
    """A connector that starts a proxy command for every connection."""

    def __init__(self, command: Callable[[], CarryingCommand]) -> None:
        self._command = command

    def open_tcp(self, address: str, port: int, timeout_s: float) -> Opened:  # noqa: ARG002 - the program knows the destination
        """Start the proxy command and return the connection; closing the connection stops the command."""
        command = self._command()
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=dict(command.environ),
                start_new_session=True,  # so that Ctrl-C reaches only cloudgpu and does not close a run's connections
            )
        except OSError as err:
            ours.close()
            message = f"cannot start {command.argv[0]}: {err.strerror}"
            raise SshSetupError(message, hint="check that it is installed and executable") from err
        finally:
            theirs.close()
        return _ProcessSocket(ours, process)


class _ProcessSocket(socket.socket):
    """The local end of a proxy command's connection. Closing it stops the process."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=ours.detach())
        self._process = process

    def close(self) -> None:
        super().close()
        threading.Thread(target=_stop, args=(self._process,), daemon=True).start()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, so that the process can close its session, and SIGKILL after a grace period."""
    with contextlib.suppress(OSError):
        process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Tunnel:
    """A tunnel that listens on 127.0.0.1 and forwards every connection through a channel opened by `connect`."""

    def __init__(
        self,
        connect: Callable[[], OrderlyChannel],
        listener: socket.socket,
        on_outcome: FailureCallback = ignore_failure,
    ) -> None:
        self._connect = connect
        self._on_outcome = on_outcome
        self._listener = listener
        self._closed = threading.Event()
        self.port: int = listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True, name=f"cloudgpu-tunnel-{self.port}").start()

    def close(self) -> None:
        """Stop accepting connections. Open connections remain until the connection to the node closes."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept; close alone does not
        self._listener.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                local, _ = self._listener.accept()
            except OSError:
                self._closed.wait(_FULL_PAUSE_S)  # out of file descriptors: wait for a connection to close
                continue
            threading.Thread(target=self._carry, args=(local,), daemon=True).start()

    def _carry(self, local: socket.socket) -> None:
        """Copy both directions of one connection. If the node or its port is unreachable, close the connection."""
        with local:
            try:
                remote = self._connect()
            except ConnectError as err:
                self._on_outcome(err)
                return
            self._on_outcome(None)
            back = threading.Thread(target=_copy_to_caller, args=(remote, local), daemon=True)
            back.start()
            _copy_to_node(local, remote)
            back.join()
            with contextlib.suppress(*LOST):
                remote.close()


def _copy_to_node(local: socket.socket, remote: OrderlyChannel) -> None:
    """Copy from the caller to the node, then forward the end of input. The other direction stays open."""
    try:
        while piece := local.recv(_CHUNK_BYTES):
            remote.sendall(piece)
        remote.shutdown(socket.SHUT_WR)
    except LOST:
        with contextlib.suppress(*LOST):
            remote.close()  # one end is lost, so close the other


def _copy_to_caller(remote: OrderlyChannel, local: socket.socket) -> None:
    """Copy from the node to the caller. If the node's side fails, reset the caller's connection."""
    with contextlib.suppress(*LOST):
        while piece := remote.recv(_CHUNK_BYTES):
            local.sendall(piece)
    with contextlib.suppress(*LOST):
        if remote.eof_received:
            local.shutdown(socket.SHUT_WR)
        else:
            local.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            local.shutdown(socket.SHUT_RD)  # wakes the other direction


def listen_on_loopback(port: int = 0) -> socket.socket:
    """Return a socket that listens on this loopback port; 0 picks any free port."""
    try:
        return socket.create_server((_HERE, port), backlog=_BACKLOG)
    except OSError as err:
        if port == 0:
            message = f"no local port is available for a tunnel: {err.strerror}"
            raise StateError(message, hint="close other tunnels or programs") from err
        if err.errno not in (errno.EADDRINUSE, errno.EACCES):
            message = f"port {port} on this machine cannot be used: {err.strerror}"
            raise StateError(message, hint="choose another port with --local") from err
        why = "is in use" if err.errno == errno.EADDRINUSE else "requires root"
        raise UsageError(f"port {port} on this machine {why}", hint=f"use port {_next_free(port)}") from err


def listen_on_next_free_port(port: int) -> socket.socket:
    """Return a socket that listens on this port, or on the next free port."""
    try:
        return listen_on_loopback(port)
    except UsageError:
        return listen_on_loopback(_next_free(port))


def _next_free(port: int) -> int:
    """Return the next free port above `port`, or any free port if the next hundred ports are in use.

    If `port` is below 1024 and therefore requires root, start the search at `port` + 8000. Return 0 if no port is free.
    """
    first = port + 1 if port >= _FIRST_UNPRIVILEGED else port + _ABOVE_PRIVILEGED
    for candidate in (*range(first, min(first + 100, _LAST + 1)), 0):
        with contextlib.suppress(OSError), socket.create_server((_HERE, candidate)) as listener:
            return int(listener.getsockname()[1])
    return 0
