"""A gang connection: a non-blocking socket and the protocol state of the connection."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from typing import Any, Callable

from .protocol import GangProtocol

_BACKLOG_BYTES = 1 << 20


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
