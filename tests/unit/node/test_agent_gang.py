"""The head's sockets, event by event: a worker may reconnect before its old connection is detected as dead."""

import contextlib
import selectors
import socket
import time

import pytest

from cloudgpu.node.agent.gang.protocol import WorkerProtocol
from cloudgpu.node.agent.gang.sockets import HeadGang
from cloudgpu.node.agent.gang.spec import GangSpec, Limits, StartSpec

TOKEN = "t" * 32
REPORT = {"done": False, "failure": None, "cancel": None, "ended": False}


class Head:
    """A head for two nodes that handles the events of one `select` in an order chosen by the test."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = probe.getsockname()
        spec = StartSpec("r", "/r", "/r", 0, (), {}, GangSpec(*self.address, TOKEN, 2), Limits())
        self.gang = HeadGang(spec, self.selector)

    def close(self) -> None:
        self.gang.close()
        self.selector.close()

    def events(self) -> list:
        return [key for key, _ in self.selector.select(5)]

    def turn(self) -> None:
        for key in self.events():
            key.data()
        self.gang.tick(REPORT, time.monotonic())

    def connect(self) -> "Worker":
        worker = Worker(socket.create_connection(self.address))
        self.turn()
        return worker


class Worker:
    """The other end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.wire, self.sent = sock, WorkerProtocol(TOKEN, "r", 1), 0

    def hear(self) -> list:
        return self.wire.feed(self.sock.recv(1 << 16))

    def send(self) -> None:
        self.sock.sendall(self.wire.out)
        self.wire.out.clear()


@pytest.fixture
def head():
    with contextlib.closing(Head()) as opened:
        yield opened


def joined(head: Head) -> Worker:
    worker = head.connect()
    worker.hear()
    worker.send()
    head.turn()
    worker.hear()
    worker.wire.send(REPORT)
    worker.send()
    head.turn()
    return worker


@pytest.mark.parametrize("order", ["the new connection first", "the old connection first"])
def test_worker_can_reconnect_while_its_old_connection_closes(head, order: str) -> None:
    old = joined(head)
    assert head.gang.formed
    new = head.connect()
    new.hear()
    new.send()
    old.sock.shutdown(socket.SHUT_RDWR)
    events: list = []
    while len(events) < 2:
        events = head.events()
    ports = {key.fileobj.getpeername()[1]: key for key in events if not _dead(key.fileobj)}
    first = ports[new.sock.getsockname()[1]]
    events.sort(key=lambda key: (key is not first) == (order == "the new connection first"))
    for key in events:
        key.data()
    head.gang.tick(REPORT, time.monotonic())
    assert {"formed": True, "verdict": None} in new.hear()
    new.wire.send({**REPORT, "done": True})
    new.send()
    head.turn()
    head.gang.tick({**REPORT, "done": True}, time.monotonic())
    assert head.gang.verdict["state"] == "succeeded"
    for worker in (old, new):
        worker.sock.close()


def _dead(sock: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        sock.getpeername()
        return False
    return True
