"""The gang's protocol: mutual authentication by token, then frames that cannot be forged or replayed.

The head node (node 0) and each worker exchange lines of text:

    head   -> worker   {"nonce": H}
    worker -> head     {"node": i, "nonce": W, "proof": HMAC(token, "worker", run, i, H, W)}
    head   -> worker   {"proof": HMAC(token, "head", run, i, H, W)}
    then both ways     HMAC(key, direction, number, body) body      key = HMAC(token, "key", run, i, H, W)

Both nonces are fresh, so a recorded conversation cannot be replayed. Each HMAC covers the frame's number and
direction, so dropped, repeated and reflected frames are detected. The token itself is never sent.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import selectors
import socket
import time
from typing import Any, Callable

from ..untrusted_data import parse_json_object

_GREETING_BYTES = 1024
_FRAME_BYTES = 256 * 1024
_NONCE_BYTES = 32
_BACKLOG_BYTES = 1 << 20


class ProtocolError(Exception):
    """The peer does not have the token, or violates the protocol."""


class GangProtocol:
    """The protocol at one end of a connection: converts between bytes and messages."""

    def __init__(self, token: str, run_id: str) -> None:
        self.out = bytearray()
        """Bytes to send. The owner of the connection removes the bytes that it has sent."""
        self.peer: int | None = None
        """Index of the node at the other end; None until the node has proved that it has the token."""
        self._token = token.encode()
        self._run_id = run_id
        self._in = bytearray()
        self._nonce = os.urandom(_NONCE_BYTES).hex()
        self._key: bytes | None = None
        self._sent = 0
        self._received = 0
        self._sends, self._receives = "", ""

    @property
    def ready(self) -> bool:
        """True once the handshake is complete, so that messages may be sent."""
        return self._key is not None

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Process received bytes and return the messages that they complete."""
        self._in += data
        messages: list[dict[str, Any]] = []
        while True:
            line, found, rest = self._in.partition(b"\n")
            if len(line) > (_FRAME_BYTES if self.ready else _GREETING_BYTES):
                raise ProtocolError("a line is too long")
            if not found:
                return messages
            self._in = rest
            if self.ready:
                messages.append(self._open(bytes(line)))
            else:
                self._greet(_object(bytes(line)))

    def send(self, message: dict[str, Any]) -> None:
        """Append a message to the bytes to send."""
        body = json.dumps(message, separators=(",", ":")).encode()
        self.out += self._mac(self._sends, self._sent, body) + b" " + body + b"\n"
        self._sent += 1

    def _open(self, line: bytes) -> dict[str, Any]:
        mac, _, body = line.partition(b" ")
        if not hmac.compare_digest(mac, self._mac(self._receives, self._received, body)):
            raise ProtocolError("a frame failed authentication")
        self._received += 1
        return _object(body)

    def _mac(self, direction: str, number: int, body: bytes) -> bytes:
        if self._key is None:
            raise ProtocolError("nothing may be sent before the handshake is complete")
        return hmac.new(self._key, f"{direction} {number} ".encode() + body, hashlib.sha256).hexdigest().encode()

    def _proof(self, role: str, node: int, head: str, worker: str) -> str:
        text = json.dumps([role, self._run_id, node, head, worker]).encode()
        return hmac.new(self._token, text, hashlib.sha256).hexdigest()

    def _finish(self, peer: int, node: int, head: str, worker: str) -> None:
        self.peer = peer
        self._key = bytes.fromhex(self._proof("key", node, head, worker))

    def _greet(self, line: dict[str, Any]) -> None:
        raise NotImplementedError

    def _write(self, line: dict[str, Any]) -> None:
        self.out += json.dumps(line).encode() + b"\n"


class HeadProtocol(GangProtocol):
    """The head node's end, which sends the first message and authenticates the worker."""

    def __init__(self, token: str, run_id: str, nodes: int) -> None:
        super().__init__(token, run_id)
        self._nodes = nodes
        self._sends, self._receives = "head", "worker"
        self._write({"nonce": self._nonce})

    def _greet(self, line: dict[str, Any]) -> None:
        node, nonce = line.get("node"), line.get("nonce")
        if not isinstance(node, int) or not 1 <= node < self._nodes or not isinstance(nonce, str):
            raise ProtocolError("malformed greeting")
        _compare(line, self._proof("worker", node, self._nonce, nonce))
        self._write({"proof": self._proof("head", node, self._nonce, nonce)})
        self._finish(node, node, self._nonce, nonce)


class WorkerProtocol(GangProtocol):
    """A worker's end, which proves that it has the token and then authenticates the head node."""

    def __init__(self, token: str, run_id: str, node: int) -> None:
        super().__init__(token, run_id)
        self._node = node
        self._head_nonce = ""
        self._sends, self._receives = "worker", "head"

    def _greet(self, line: dict[str, Any]) -> None:
        if self._head_nonce:
            _compare(line, self._proof("head", self._node, self._head_nonce, self._nonce))
            self._finish(0, self._node, self._head_nonce, self._nonce)
            return
        nonce = line.get("nonce")
        if not isinstance(nonce, str) or not nonce:
            raise ProtocolError("malformed greeting")
        self._head_nonce = nonce
        proof = self._proof("worker", self._node, nonce, self._nonce)
        self._write({"node": self._node, "nonce": self._nonce, "proof": proof})


def _compare(line: dict[str, Any], expected: str) -> None:
    received = line.get("proof")
    # An unauthenticated peer may send a lone surrogate, which JSON allows but UTF-8 cannot encode.
    if not isinstance(received, str) or not hmac.compare_digest(received.encode("utf-8", "replace"), expected.encode()):
        raise ProtocolError("the proof of the gang's token is wrong")


def _object(line: bytes) -> dict[str, Any]:
    try:
        return parse_json_object(line)
    except ValueError:
        raise ProtocolError("not a JSON object") from None


class GangConnection:
    """One end of a connection between the head node and a worker."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: GangProtocol,
        selector: selectors.BaseSelector,
        on_event: Callable[[GangConnection], None],
    ) -> None:
        sock.settimeout(0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.protocol = protocol
        self.opened = time.monotonic()
        self.closed = False
        self._selector = selector
        self._on_event = on_event
        selector.register(sock, selectors.EVENT_READ, self._event)

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have arrived."""
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        return self.protocol.feed(data)

    def flush(self) -> None:
        """Send as much of the pending data as possible without blocking."""
        out = self.protocol.out
        if out:
            try:
                del out[: self.sock.send(out)]
            except BlockingIOError:
                if len(out) > _BACKLOG_BYTES:
                    raise ConnectionResetError(errno.ECONNRESET, "the peer does not read") from None
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if out else 0)
        self._selector.modify(self.sock, events, self._event)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._selector.unregister(self.sock)
        self.sock.close()

    def _event(self) -> None:
        # An earlier event from the same `select` may have closed this connection, because the node reconnected.
        if not self.closed:
            self._on_event(self)
