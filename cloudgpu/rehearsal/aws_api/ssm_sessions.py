"""Session Manager data channels: streams to a node's SSH server, even if the node is not reachable from outside.

Every session has a separate listener on 127.0.0.1, which accepts one client that sends the session's token. The
listener forwards the stream to the socket of the node's simulated SSM agent, so the stream does not depend on security
groups or public addresses.
"""

import contextlib
import hmac
import secrets
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes import sockets

_CHUNK_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 60.0
_TOKEN_BYTES = 512


@dataclass(frozen=True)
class Channel:
    """A data channel: the session id, and the URL and token with which a client connects."""

    session_id: str
    token: str
    url: str


class SsmSessions:
    """The Session Manager sessions of one rehearsal cloud. `nodes` is the node host's directory."""

    def __init__(self, nodes: Path) -> None:
        self._nodes = nodes

    def is_agent_connected(self, instance_id: str) -> bool:
        """Return True if the agent's socket exists on the node."""
        return self._agent(instance_id).exists()

    def open(self, instance_id: str) -> Channel:
        """Open a channel that waits one minute for its client to connect."""
        channel_id, token = f"rehearsal-{secrets.token_hex(9)}", secrets.token_urlsafe(48)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(_CONNECT_TIMEOUT_S)
        threading.Thread(target=self._serve, args=(listener, token, instance_id), daemon=True).start()
        port = listener.getsockname()[1]
        return Channel(channel_id, token, f"ws://127.0.0.1:{port}/v1/data-channel/{channel_id}?role=publish_subscribe")

    def _agent(self, instance_id: str) -> Path:
        return self._nodes / "instances" / instance_id / "run" / sockets.AGENT_SOCKET

    def _serve(self, listener: socket.socket, token: str, instance_id: str) -> None:
        with contextlib.suppress(OSError, RehearsalError), listener:
            client, _ = listener.accept()
            with client:
                client.settimeout(_CONNECT_TIMEOUT_S)
                if not hmac.compare_digest(_read_line(client), token.encode()):
                    return
                client.settimeout(None)
                with sockets.connect(self._agent(instance_id), None) as agent:
                    to_agent = threading.Thread(target=_copy, args=(client, agent), daemon=True)
                    to_agent.start()
                    _copy(agent, client)


def _read_line(client: socket.socket) -> bytes:
    """Read the first line byte by byte, because all later bytes belong to the forwarded stream."""
    line = b""
    while len(line) < _TOKEN_BYTES and not line.endswith(b"\n"):
        piece = client.recv(1)
        if not piece:
            break
        line += piece
    return line.rstrip(b"\n")


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_CHUNK_BYTES):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
