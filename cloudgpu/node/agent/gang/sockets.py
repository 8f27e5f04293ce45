"""The gang's sockets: the head node listens on its private address, and workers connect and reconnect to it."""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import time
from typing import Any, Callable, Protocol

from ..untrusted_data import AgentError, raise_malformed_as
from .protocol import GangConnection, HeadProtocol, ProtocolError, WorkerProtocol
from .spec import StartSpec
from .verdict import GangVerdict, HeadCore, Report, WorkerCore, read_order, read_report

_GREETING_S = 5.0
"""Seconds within which a peer must prove that it has the token."""
_MAX_UNAUTHENTICATED = 256
"""Maximum number of connections whose peers have not yet proved that they have the token."""
_SPARE_HANDLES = 1024
_RETRY_S = 0.25
_FAREWELL_S = 2.0


class Gang(Protocol):
    """The supervisor's interface to the gang."""

    @property
    def formed(self) -> bool:
        """True if every node has connected, so that ranks may start."""

    @property
    def verdict(self) -> GangVerdict | None:
        """Outcome of the run; None until it is decided."""

    def tick(self, report: Report, now: float) -> None:
        """Process this node's report, send pending messages to the other nodes, and decide the outcome if possible."""

    def released(self, now: float) -> bool:
        """Return True if this node has finished and no other node needs it."""

    def close(self) -> None:
        """Close the connections."""


class SingleNodeGang:
    """A gang of one node, which decides the outcome and has no sockets."""

    def __init__(self, spec: StartSpec) -> None:
        self._spec = spec
        self._head = HeadCore(spec.gang.nodes, spec.limits, time.monotonic())

    @property
    def formed(self) -> bool:
        """See `Gang.formed`."""
        return self._head.formed

    @property
    def verdict(self) -> GangVerdict | None:
        """See `Gang.verdict`."""
        return self._head.verdict

    def tick(self, report: Report, now: float) -> None:
        """See `Gang.tick`."""
        self._head.receive(0, report, now)
        self._head.tick(now)

    def released(self, now: float) -> bool:
        """See `Gang.released`."""
        return self._head.released(now)

    def close(self) -> None:
        """Do nothing, because there are no connections."""


class HeadGang(SingleNodeGang):
    """The gang as seen by node 0, to which workers connect: it listens, and sends the same order to every worker."""

    def __init__(self, spec: StartSpec, selector: selectors.BaseSelector) -> None:
        super().__init__(spec)
        self._selector = selector
        if spec.gang.nodes > _MAX_UNAUTHENTICATED:
            _allow_handles(spec.gang.nodes + _SPARE_HANDLES)
        self._listener = _listen(spec.gang.head_address, spec.gang.port)
        self._connections: dict[int, GangConnection] = {}
        self._unauthenticated: set[GangConnection] = set()
        self._last_order: dict[str, Any] = {}
        self._last_order_at = 0.0
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def tick(self, report: Report, now: float) -> None:
        """See `Gang.tick`. Also send changed orders and heartbeats, and drop peers that do not authenticate in time."""
        super().tick(report, now)
        order = self._head.order
        if order != self._last_order or now - self._last_order_at >= self._spec.limits.heartbeat_s:
            self._last_order, self._last_order_at = order, now
            for connection in list(self._connections.values()):
                self._send_order(connection)
        for connection in [connection for connection in self._unauthenticated if now - connection.opened > _GREETING_S]:
            self._drop(connection)

    def close(self) -> None:
        """Close every connection and stop listening."""
        for connection in [*self._connections.values(), *self._unauthenticated]:
            connection.close()
        self._selector.unregister(self._listener)
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # the peer disconnected before it was accepted
        if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
            sock.close()
            return
        protocol = HeadProtocol(self._spec.gang.token, self._spec.run_id, self._spec.gang.nodes)
        connection = GangConnection(sock, protocol, self._selector, self._on_message)
        self._unauthenticated.add(connection)
        self._flush(connection)

    def _on_message(self, connection: GangConnection) -> None:
        try:
            reports = [_read(read_report, message) for message in connection.receive()]
            connection.flush()
        except (OSError, ProtocolError):
            self._drop(connection)
            return
        for report in reports:
            self._head.receive(connection.protocol.peer or 0, report, time.monotonic())
        if connection in self._unauthenticated and connection.protocol.ready:
            self._register(connection)

    def _register(self, connection: GangConnection) -> None:
        """Register a node's connection. If the node has reconnected, close its old connection, which has failed."""
        self._unauthenticated.discard(connection)
        old = self._connections.pop(connection.protocol.peer or 0, None)
        if old is not None:
            old.close()
        self._connections[connection.protocol.peer or 0] = connection
        self._send_order(connection)

    def _send_order(self, connection: GangConnection) -> None:
        connection.protocol.send(self._head.order)
        self._flush(connection)

    def _flush(self, connection: GangConnection) -> None:
        try:
            connection.flush()
        except OSError:
            self._drop(connection)

    def _drop(self, connection: GangConnection) -> None:
        connection.close()
        self._unauthenticated.discard(connection)
        peer = connection.protocol.peer
        if peer is not None and self._connections.get(peer) is connection:
            del self._connections[peer]
            self._head.closed(peer, time.monotonic())


class WorkerGang:
    """The gang as seen by a worker, which connects to the head node, sends reports and follows orders."""

    def __init__(self, spec: StartSpec, selector: selectors.BaseSelector) -> None:
        self._spec = spec
        self._selector = selector
        self._core = WorkerCore(spec.limits, time.monotonic())
        self._connection: GangConnection | None = None
        self._retry_at = 0.0
        self._last_report: dict[str, Any] = {}
        self._last_report_at = 0.0
        self._ended_at: float | None = None

    @property
    def formed(self) -> bool:
        """See `Gang.formed`."""
        return self._core.formed

    @property
    def verdict(self) -> GangVerdict | None:
        """See `Gang.verdict`."""
        return self._core.verdict

    def tick(self, report: Report, now: float) -> None:
        """See `Gang.tick`."""
        if report["cancel"] is not None:
            self._core.cancel(report["cancel"], now)
        if report["ended"] and self._ended_at is None:
            self._ended_at = now
        self._connect(now)
        comparable = _without_age(report)
        due = comparable != self._last_report or now - self._last_report_at >= self._spec.limits.heartbeat_s
        if due and self._connection is not None and self._connection.protocol.ready:
            self._connection.protocol.send(report)
            self._last_report, self._last_report_at = comparable, now
            self._flush(self._connection)
        self._core.tick(now)

    def released(self, now: float) -> bool:
        """Return True if this node has finished and has sent its last report, lost its connection or timed out."""
        if self._ended_at is None:
            return False
        delivered = self._connection is None or (
            bool(self._last_report.get("ended")) and not self._connection.protocol.out
        )
        return delivered or now - self._ended_at > _FAREWELL_S

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def _connect(self, now: float) -> None:
        connection = self._connection
        if connection is not None:
            stuck = not connection.protocol.ready and now - connection.opened > _GREETING_S
            # A connection may fail silently. Reconnect before the head node considers this node lost.
            if stuck or now - max(connection.opened, self._core.last_message_at) > self._spec.limits.lost_s / 2:
                self._drop()
        if self._connection is not None or now < self._retry_at or self._ended_at is not None:
            return
        self._retry_at = now + _RETRY_S
        try:
            sock = _begin_connect(self._spec.gang.head_address, self._spec.gang.port)
        except OSError:
            self._core.closed(now)
            return
        self._last_report = {}
        protocol = WorkerProtocol(self._spec.gang.token, self._spec.run_id, self._spec.node_index)
        self._connection = GangConnection(sock, protocol, self._selector, self._on_message)

    def _on_message(self, connection: GangConnection) -> None:
        try:
            orders = [_read(read_order, message) for message in connection.receive()]
            connection.flush()
        except (OSError, ProtocolError):
            self._drop()
            return
        for order in orders:
            self._core.receive(order, time.monotonic())

    def _flush(self, connection: GangConnection) -> None:
        try:
            connection.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._core.closed(time.monotonic())


def _read(read: Callable[[dict[str, Any]], dict[str, Any]], message: dict[str, Any]) -> dict[str, Any]:
    """Parse a message. A malformed message closes its connection but never stops the agent."""
    with raise_malformed_as(lambda why: ProtocolError(f"malformed message: {why}")):
        return read(message)


def join_gang(spec: StartSpec, selector: selectors.BaseSelector) -> Gang:
    """Create this node's interface to the gang."""
    if spec.gang.nodes == 1:
        return SingleNodeGang(spec)
    return HeadGang(spec, selector) if spec.node_index == 0 else WorkerGang(spec, selector)


def _listen(address: str, port: int) -> socket.socket:
    family, socket_type, protocol, _, socket_address = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, socket_type, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(socket_address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        busy = error.errno == errno.EADDRINUSE
        raise AgentError(
            f"the head node cannot listen on {address} port {port}: {error.strerror}",
            code="port-in-use" if busy else "cannot-listen",
            hint="use another port; another run may use this port" if busy else "check the node's private address",
        ) from error
    sock.settimeout(0)
    return sock


def _allow_handles(needed: int) -> None:
    """Raise the limit on open files: the head node has one connection per node, and the default limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    new_limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < new_limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard))


def _begin_connect(address: str, port: int) -> socket.socket:
    """Start a non-blocking connect. If it fails later, the worker's first read raises the error."""
    family, socket_type, protocol, _, socket_address = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, socket_type, protocol)
    sock.settimeout(0)
    outcome = sock.connect_ex(socket_address)
    if outcome not in (0, errno.EINPROGRESS):
        sock.close()
        raise OSError(outcome, "cannot connect")
    return sock


def _without_age(report: Report) -> dict[str, Any]:
    """Return the report with the failure's age, which changes constantly, set to zero."""
    failure = report["failure"]
    return {**report, "failure": None if failure is None else {**failure, "age_s": 0}}
