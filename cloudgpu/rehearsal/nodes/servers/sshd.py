"""The SSH server of one node."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from cloudgpu.rehearsal.nodes import sockets
from cloudgpu.rehearsal.nodes.processes import Body
from cloudgpu.rehearsal.nodes.servers.ssh_session import NodeSession

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_TIMEOUT_S = 60


@dataclass(frozen=True)
class Login:
    """Who may log in to a node, and what their processes start with."""

    user: str
    authorized_keys: tuple[str, ...]
    home: str
    environment: Mapping[str, str]
    hostname: str
    address: str


class NodeSshServer:
    """Listens for one node; ends every connection when the node ends."""

    def __init__(self, body: Body, login: Login, key: asyncssh.SSHKey) -> None:
        """Nothing listens yet.

        Args:
            body: Where commands run.
            login: Who may log in.
            key: The node's host key.
        """
        self._body = body
        self._login = login
        self._key = key
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.connections: set[asyncssh.SSHServerConnection] = set()

    async def listen(self, bound: socket.socket) -> None:
        """Accept connections on a bound socket, which is closed with the server.

        Raises:
            OSError: The socket is unusable.
        """
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
        """Let nobody new in; who is in stays."""
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        self.stop_listening()
        for connection in tuple(self.connections):
            connection.abort()
        self.connections.clear()
        if self._acceptor is not None:
            await self._acceptor.wait_closed()
            self._acceptor = None


class SshDoors:
    """The two ways to one node's SSH server: its port, when rules let callers in, and its agent's socket, always."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._outer: NodeSshServer | None = None
        self._agent: NodeSshServer | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody could come in."""
        return self._agent is not None

    async def open(self, server: Callable[[], NodeSshServer], bound: socket.socket | None) -> None:
        """Let people in by the agent, and by the port where there is one.

        Raises:
            OSError: A socket is unusable.
        """
        if self._agent is None:
            agent = server()
            await agent.listen(sockets.bind(self._run / sockets.AGENT))
            self._agent = agent
        if bound is not None:
            self._outer = server()
            await self._outer.listen(bound)

    def shut(self) -> None:
        """Let nobody new in by the port; who is in stays."""
        if self._outer is not None:
            self._outer.stop_listening()

    async def close(self) -> None:
        """Stop listening and cut every connection."""
        doors, self._outer, self._agent = (self._outer, self._agent), None, None
        for door in doors:
            if door is not None:
                await door.close()


class _Gate(asyncssh.SSHServer):
    """One connection: public keys only, the node's own user only."""

    def __init__(self, server: NodeSshServer, body: Body, login: Login, keys: frozenset[bytes]) -> None:
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
        """Tunnels lead to this node and to the others of its cloud, as they would behind a security group."""
        del orig_host, orig_port
        own = {*_LOCAL_NAMES, self._login.address, self._login.hostname}
        if dest_host not in own and not self._is_beside(dest_host):
            message = f"{dest_host} is neither this node nor one beside it"
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, message)
        return bool(dest_port)

    def _is_beside(self, host: str) -> bool:
        """The nodes of one home share the first two parts of their loopback addresses, and no other home's do."""
        own = self._login.address.split(".")[:2]
        return own != ["127", "0"] and host.split(".")[:2] == own

    def _variables(self) -> dict[str, str]:
        """What OpenSSH adds for a login."""
        values = dict(self._login.environment)
        if self._connection is not None:
            peer = self._connection.get_extra_info("peername") or ("", 0)
            own = self._connection.get_extra_info("sockname") or ("", 0)
            values["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {own[0]} {own[1]}"
            values["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {own[1]}"
        return values


def _parsed(lines: tuple[str, ...]) -> frozenset[bytes]:
    """The keys as sent on the wire. A line that is no key lets nobody in, as in OpenSSH."""
    found = set()
    for line in lines:
        try:
            found.add(asyncssh.import_public_key(line).public_data)
        except asyncssh.KeyImportError:
            continue
    return frozenset(found)
