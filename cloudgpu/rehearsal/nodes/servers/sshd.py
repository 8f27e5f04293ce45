"""The SSH server of a node."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from cloudgpu.rehearsal.nodes import addresses
from cloudgpu.rehearsal.nodes.processes import NodeRuntime
from cloudgpu.rehearsal.nodes.servers.ssh_session import NodeSession

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_TIMEOUT_S = 60


@dataclass(frozen=True)
class LoginUser:
    """The login user of a node, and the environment of the user's processes."""

    user: str
    authorized_keys: tuple[str, ...]
    home: str
    environment: Mapping[str, str]
    hostname: str
    address: str


class NodeSshServer:
    """An SSH server for one node. Closing the server closes all its connections."""

    def __init__(self, body: NodeRuntime, login: LoginUser, key: asyncssh.SSHKey) -> None:
        """Create the server without listening.

        Args:
            body: Runtime of the node's processes.
            login: The only user who may log in.
            key: Host key of the node.
        """
        self._body = body
        self._login = login
        self._key = key
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.connections: set[asyncssh.SSHServerConnection] = set()

    async def listen(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket. Closing the server closes the socket."""
        keys = _parsed(self._login.authorized_keys)
        self._acceptor = await asyncssh.listen(
            sock=bound,
            config=[],
            server_factory=lambda: _Gate(self, self._body, self._login, keys),
            server_host_keys=[self._key],
            server_version="cloudgpu-rehearsal",
            encoding=None,
            line_editor=False,
            agent_forwarding=False,
            x11_forwarding=False,
            gss_host=None,
            password_auth=False,
            kbdint_auth=False,
            login_timeout=_LOGIN_TIMEOUT_S,
            backlog=256,
        )

    def stop_listening(self) -> None:
        """Stop accepting connections. Open connections are kept."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self.stop_listening()
        for connection in tuple(self.connections):
            connection.abort()
        self.connections.clear()
        if self._acceptor is not None:
            await self._acceptor.wait_closed()
            self._acceptor = None


class SshDoors:
    """The sockets of a node's SSH server: the SSM agent's socket and, if security groups allow it, the TCP port."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._outer: NodeSshServer | None = None
        self._agent: NodeSshServer | None = None

    @property
    def is_open(self) -> bool:
        """True while the server accepts connections on the SSM agent's socket, whether or not the TCP port is open."""
        return self._agent is not None

    async def open(self, server: Callable[[], NodeSshServer], bound: socket.socket | None) -> None:
        """Accept connections from the SSM agent and, if `bound` is not None, on the bound TCP socket."""
        if self._agent is None:
            agent = server()
            await agent.listen(addresses.bind(self._run / addresses.AGENT_SOCKET))
            self._agent = agent
        if bound is not None:
            self._outer = server()
            await self._outer.listen(bound)

    def close_port(self) -> None:
        """Stop accepting connections on the TCP port. Open connections are kept."""
        if self._outer is not None:
            self._outer.stop_listening()

    async def close(self) -> None:
        """Stop listening and close every connection."""
        doors, self._outer, self._agent = (self._outer, self._agent), None, None
        for door in doors:
            if door is not None:
                await door.close()


class _Gate(asyncssh.SSHServer):
    """The authenticator for one connection, which accepts only public keys and only the node's login user."""

    def __init__(self, server: NodeSshServer, body: NodeRuntime, login: LoginUser, keys: frozenset[bytes]) -> None:
        self._server = server
        self._body = body
        self._login = login
        self._keys = keys
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._connection is not None:
            self._server.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        del username
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._login.user and key.public_data in self._keys

    def session_requested(self) -> NodeSession:
        return NodeSession(self._body, self._login.user, self._login.home, self._variables())

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        """Allow tunnels to this node and to other nodes of the same cloud, as within a security group."""
        del orig_host, orig_port
        local_names = {*_LOCAL_NAMES, self._login.address, self._login.hostname}
        if dest_host not in local_names and not self._is_in_same_cloud(dest_host):
            message = f"{dest_host} is not a node of this rehearsal cloud"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, message)
        return bool(dest_port)

    def _is_in_same_cloud(self, host: str) -> bool:
        """Return True if the host is an address of this state home, whose addresses share their first two octets."""
        prefix = self._login.address.split(".")[:2]
        return prefix != ["127", "0"] and host.split(".")[:2] == prefix

    def _variables(self) -> dict[str, str]:
        """Return the environment, including the variables that OpenSSH sets at login."""
        values = dict(self._login.environment)
        if self._connection is not None:
            peer = self._connection.get_extra_info("peername") or ("", 0)
            own = self._connection.get_extra_info("sockname") or ("", 0)
            values["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {own[0]} {own[1]}"
            values["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {own[1]}"
        return values


def _parsed(lines: tuple[str, ...]) -> frozenset[bytes]:
    """Return the keys in wire format. Invalid lines are ignored, as in OpenSSH."""
    keys = set()
    for line in lines:
        try:
            keys.add(asyncssh.import_public_key(line).public_data)
        except asyncssh.KeyImportError:
            continue
    return frozenset(keys)
