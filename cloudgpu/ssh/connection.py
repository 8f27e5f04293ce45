"""An SSH connection to one node, shared by all calls and reopened after it is lost, and the host key of its server."""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, RemoteCommandError
from cloudgpu.launch.inventory import Node, loopback_address, shares_this_machine
from cloudgpu.ssh.base import (
    COMMAND_S,
    CONNECT_S,
    FailureCallback,
    OnBytes,
    Result,
    ignore_bytes,
    ignore_failure,
    lost_connection_hint,
    node_label,
    refused_connection,
    require_success,
)
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.forwarding import TcpConnector, Tunnel, listen_on_loopback, listen_on_next_free_port
from cloudgpu.ssh.handshake import Opened, exchange_keys, open_link, open_socket
from cloudgpu.ssh.openssh import ServerKey
from cloudgpu.ssh.session import CommandSession, KeepaliveLimits, SessionStream
from cloudgpu.ssh.transfer import fetch, send
from cloudgpu.ssh.transfer.listing import OnSkipped, PlaceOf, same_place
from cloudgpu.ssh.transport import LOST, WINDOW_BYTES, Link, OrderlyChannel, RefusedChannel

_CHANNEL_TIMEOUT_S = 30.0
_LANES = 16
_SESSIONS = 10
_MOST_OUTPUT_BYTES = 256 << 20
_LINES_WINDOW_BYTES = 2 << 20
"""Receive window of a command whose output is read line by line, an eighth of the window of a transfer.

A rank can print faster than its lines can be shown, so this memory is used for every node of a run.
"""


class SilentPortError(ConnectError):
    """The node is reachable, but it cannot connect to the requested address and port."""


class ProhibitedForwardingError(SilentPortError):
    """The SSH server of the node or jump host does not forward connections, so another attempt would not help."""

    retryable = False


def connect(
    node: Node,
    key: Path,
    *,
    clock: Clock,
    timeout_s: float = CONNECT_S,
    via: TcpConnector | None = None,
    keepalive: KeepaliveLimits | None = None,
) -> "SshHost":
    """Connect to a node, through `via` if given."""
    host = SshHost(node, key, clock=clock, timeout_s=timeout_s, via=via, keepalive=keepalive or KeepaliveLimits())
    host.connect()
    return host


class SshHost:
    """An SSH connection to one node. Implements `ssh.base.Host`; safe to use from several threads."""

    def __init__(
        self,
        node: Node,
        key: Path,
        *,
        clock: Clock,
        timeout_s: float,
        via: TcpConnector | None,
        keepalive: KeepaliveLimits,
    ) -> None:
        self.node = node
        self.key = Path(node.key) if node.key else key
        self.via = via
        self._clock = clock
        self._timeout_s = timeout_s
        self._keepalive = keepalive
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._tunnels: dict[int, Tunnel] = {}

    def connect(self) -> None:
        """Connect, unless a connection is already open."""
        self._lane(0)

    @property
    def connected(self) -> bool:
        """True if a connection is open. The loss of a connection may go unnoticed until the next use."""
        with self._lock:
            return any(link.is_active() for link in self._links)

    def run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and wait for it."""
        return require_success(self.try_run(command, stdin=stdin, timeout_s=timeout_s))

    def try_run(self, command: RemoteCommand, *, stdin: bytes = b"", timeout_s: float = COMMAND_S) -> Result:
        """Run a command and return its result, whatever the exit code."""
        began = self._clock.monotonic()
        session = self.start(command, stdin)
        stdout = self._read(session, timeout_s)
        return Result(
            host=node_label(self.node),
            shown=command.shown(),
            exit_code=session.exit_code,
            stdout=stdout.decode("utf-8", "replace"),
            stderr=session.stderr.decode("utf-8", "replace"),
            seconds=self._clock.monotonic() - began,
        )

    def _read(self, session: CommandSession, timeout_s: float) -> bytes:
        """Read all of a command's standard output. The size is limited, because the output is kept in memory."""
        stdout = bytearray()
        for piece in session.output(timeout_s):
            stdout += piece
            if len(stdout) > _MOST_OUTPUT_BYTES:
                session.end()
                size = f"{_MOST_OUTPUT_BYTES >> 20} MiB"
                raise RemoteCommandError(
                    f"{node_label(self.node)}: a command printed more than {size}", hint=lost_connection_hint(self.node)
                )
        return bytes(stdout)

    def stream(self, command: RemoteCommand, *, stdin: bytes = b"") -> SessionStream:
        """Start a command whose output is read line by line."""
        return SessionStream(self._start(command, stdin, _LINES_WINDOW_BYTES))

    def start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes] = b"") -> CommandSession:
        """Start a command whose output is read in chunks of bytes."""
        return self._start(command, stdin, WINDOW_BYTES)

    def _start(self, command: RemoteCommand, stdin: bytes | Iterable[bytes], window_bytes: int) -> CommandSession:
        link, channel = self._channel(window_bytes)
        session = CommandSession(
            link,
            channel,
            who=node_label(self.node),
            clock=self._clock,
            keepalive=self._keepalive,
            hint=lost_connection_hint(self.node),
        )
        session.start(command.wire(), stdin)
        return session

    def put_bytes(self, content: bytes, path: str, *, mode: int = 0o600) -> None:
        """Write a remote file atomically, and create missing directories."""
        send.put_bytes(self, content, path, mode=mode)

    def get_file(self, path: str, to: Path) -> None:
        """Download a file; the local write is atomic."""
        fetch.get_file(self, path, to)

    def send_tree(self, source: Path, files: Sequence[str], to: str, on_bytes: OnBytes = ignore_bytes) -> int:
        """Make a remote directory contain exactly these files from `source`; return the number of bytes sent.

        `files` contains paths relative to `source`.
        """
        return send.send_tree(self, source, files, to, on_bytes)

    def claim_tree(self, to: str) -> None:
        """Create a remote directory or adopt an empty one, so that `send_tree` may change its contents later."""
        send.claim_tree(self, to)

    def fetch_tree(
        self,
        source: str,
        patterns: Sequence[str],
        to: Path,
        on_skipped: OnSkipped | None = None,
        on_bytes: OnBytes = ignore_bytes,
        *,
        place: PlaceOf = same_place,
    ) -> list[str]:
        """Download the matching files from a remote directory; return their relative paths.

        `on_skipped` is called for every entry that cannot be downloaded, and `place` returns the local path of a path.
        """
        return fetch.fetch_tree(self, source, patterns, to, on_skipped, on_bytes, place=place)

    def forward(
        self,
        remote_port: int,
        *,
        local: int = 0,
        near: bool = False,
        bound: bool = False,
        on_outcome: FailureCallback = ignore_failure,
    ) -> int:
        """Open a tunnel to a port on the node's loopback address and return the local port.

        If a tunnel to `remote_port` is already open, return its local port instead.

        Args:
            remote_port: Port on the node.
            local: Local port; 0 picks any free port.
            near: Use the next free local port if `local` is in use.
            bound: True if the remote service listens only on the node's loopback address.
            on_outcome: Called with the outcome of every connection.
        """
        with self._lock:
            if remote_port not in self._tunnels:
                listener = listen_on_next_free_port(local) if near else listen_on_loopback(local)
                self._tunnels[remote_port] = Tunnel(lambda: self._enter(remote_port, bound=bound), listener, on_outcome)
            return self._tunnels[remote_port].port

    def _enter(self, port: int, *, bound: bool) -> OrderlyChannel:
        """Open a connection to a port on the node's loopback address."""
        shared = shares_this_machine(self.node)
        # Nodes that share this machine have different loopback addresses. Their programs may still listen on 127.0.0.1.
        addresses = [loopback_address(self.node), *(["127.0.0.1"] if shared and not bound else [])]
        with self._lock:
            is_tunnel = shared and any(tunnel.port == port for tunnel in self._tunnels.values())
        silent = SilentPortError(
            f"{node_label(self.node)} cannot connect to port {port}: a local tunnel uses this port",
            hint="close that tunnel",
        )
        for address in dict.fromkeys(addresses):
            if is_tunnel and address == "127.0.0.1":
                continue  # the connection would enter the same tunnel again, endlessly
            try:
                return self.open_tcp(address, port)
            except SilentPortError as err:
                silent = err
        raise silent

    def open_tcp(self, address: str, port: int, timeout_s: float = _CHANNEL_TIMEOUT_S) -> OrderlyChannel:
        """Open a TCP connection from the node to a host that the node can reach."""
        link = self._lane(0)
        try:
            return link.open("direct-tcpip", (address, port), timeout=timeout_s)
        except RefusedChannel as err:
            prohibited = err.code == RefusedChannel.PROHIBITED
            reason = err.reason or str(err)
            message, hint = refused_connection(self.node, f"{address}:{port}", reason, prohibited=prohibited)
            raise (ProhibitedForwardingError if prohibited else SilentPortError)(message, hint=hint) from err
        except LOST as err:
            message = f"{node_label(self.node)} cannot connect to {address}:{port}: {err}"
            raise ConnectError(message, hint=lost_connection_hint(self.node)) from err

    def server_key(self) -> ServerKey:
        """Return the verified host key for a `known_hosts` file."""
        key = self._lane(0).get_remote_server_key()
        return ServerKey(str(key.get_name()), str(key.get_base64()))

    def close(self) -> None:
        """Close the connection and its tunnels. The next command or transfer reconnects."""
        with self._lock:
            links, self._links = self._links, []
            tunnels, self._tunnels = list(self._tunnels.values()), {}
        for tunnel in tunnels:
            tunnel.close()
        for link in links:
            link.hang_up()

    def __enter__(self) -> "SshHost":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _channel(self, window_bytes: int) -> tuple[Link, OrderlyChannel]:
        """Open a session channel, on another connection beyond the server's limit (OpenSSH: 10 per connection)."""
        for lane in range(_LANES):
            link = self._lane(lane)
            if link.channels >= _SESSIONS:
                continue
            try:
                return link, link.open_session(timeout=_CHANNEL_TIMEOUT_S, window_bytes=window_bytes)
            except RefusedChannel:
                continue
            except LOST as err:
                link.hang_up()
                raise ConnectError(
                    f"lost the connection to {node_label(self.node)}: {str(err) or 'the other end closed it'}",
                    hint=lost_connection_hint(self.node),
                ) from err
        raise ConnectError(
            f"{node_label(self.node)} does not accept any more sessions",
            hint="close some open sessions, or check `MaxSessions` in its sshd_config",
        )

    def _lane(self, index: int) -> Link:
        """Return the connection at `index`, opening it if it is missing or lost."""
        with self._lock:
            self._links = [link for link in self._links if link.is_active()]
            while len(self._links) <= index:
                self._links.append(self._connect())
            return self._links[index]

    def _connect(self) -> Link:
        return open_link(self.node, self.key, clock=self._clock, timeout_s=self._timeout_s, connect=self._open)

    def _open(self, timeout_s: float) -> Opened:
        if self.via is None:
            return open_socket(self.node, timeout_s)
        return self.via.open_tcp(self.node.address, self.node.port, timeout_s)


@dataclass(frozen=True)
class ShownKey:
    """The host key presented by a server."""

    kind: str
    """Key type, for example `ssh-ed25519`."""
    fingerprint: str
    """Fingerprint in the form `SHA256:...`."""


def shown_key(node: Node, via: TcpConnector | None, *, timeout_s: float = 10.0) -> ShownKey:
    """Return the host key that the node's SSH server presents. The key is not verified.

    If the server has keys of several types, this is the key of the type that cloudgpu prefers.
    """
    link = exchange_keys(node, _opener(node, via)(timeout_s), timeout_s)
    try:
        key = link.get_remote_server_key()
        return ShownKey(key.get_name(), key.fingerprint)
    finally:
        link.hang_up()


def _opener(node: Node, via: TcpConnector | None) -> Callable[[float], Opened]:
    if via is None:
        return lambda timeout_s: open_socket(node, timeout_s)
    return lambda timeout_s: via.open_tcp(node.address, node.port, timeout_s)
