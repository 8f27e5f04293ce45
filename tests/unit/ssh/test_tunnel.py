"""A tunnel's own side: real sockets, and a far end that is a socket too."""

import contextlib
import os
import socket
import threading

import pytest

from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.ssh.tunnel import Tunnel, listen_on_loopback, listen_on_next_free_port


class Far:
    """The far end of a channel, as a socket behind the interface of a channel."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours
        self.eof_received = self.broken = False

    def recv(self, count: int) -> bytes:
        piece = b"" if self.broken else self._ours.recv(count)
        self.eof_received = not piece and not self.broken
        return piece

    def sendall(self, piece: bytes) -> None:
        self._ours.sendall(piece)

    def shutdown(self, how: int) -> None:
        self._ours.shutdown(how)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)
        self._ours.close()

    def break_off(self) -> None:
        """As when the connection to the node is lost."""
        self.broken = True
        self.close()


@pytest.fixture
def tunnel():
    """A tunnel, the far ends of its connections as they come, and what it tells."""
    far, told = [], []
    came = threading.Condition()

    def connect() -> Far:
        ours, theirs = socket.socketpair()
        channel = Far(ours)
        with came:
            far.append((channel, theirs))
            came.notify_all()
        return channel

    opened = Tunnel(connect, listen_on_loopback(), told.append)
    opened.told = told

    def connected(count: int = 1):
        with came:
            assert came.wait_for(lambda: len(far) >= count, 10)
            return far[count - 1]

    opened.connected = connected
    yield opened
    opened.close()
    for channel, theirs in far:
        channel.close()
        theirs.close()


def client(tunnel: Tunnel) -> socket.socket:
    return socket.create_connection(("127.0.0.1", tunnel.port), 10)


def everything(source: socket.socket) -> bytes:
    return b"".join(iter(lambda: source.recv(1 << 16), b""))


def test_it_listens_on_the_loopback_alone(tunnel):
    assert tunnel._listener.getsockname()[0] == "127.0.0.1"


def test_half_open_stays_half_open_both_ways(tunnel):
    with client(tunnel) as local:
        _, far = tunnel.connected()
        local.sendall(b"request")
        local.shutdown(socket.SHUT_WR)
        assert everything(far) == b"request"
        far.sendall(b"answer")
        far.shutdown(socket.SHUT_WR)
        assert everything(local) == b"answer"
    with client(tunnel) as local:
        _, far = tunnel.connected(2)
        far.sendall(b"greeting")
        far.shutdown(socket.SHUT_WR)
        assert everything(local) == b"greeting"
        local.sendall(b"reply")
        local.shutdown(socket.SHUT_WR)
        assert everything(far) == b"reply"
    assert tunnel.told == [None, None]


def test_an_answer_that_breaks_off_does_not_look_complete(tunnel):
    with client(tunnel) as local:
        channel, far = tunnel.connected()
        far.sendall(b"half of")
        assert local.recv(100) == b"half of"
        channel.break_off()
        with pytest.raises(ConnectionResetError):
            local.recv(100)


def test_a_caller_who_goes_away_lets_the_far_end_go(tunnel):
    _, far = None, None
    with client(tunnel) as local:
        _, far = tunnel.connected()
        local.sendall(b"x")
    assert everything(far) == b"x"
    far.settimeout(10)
    # Who still sends is told by a closed connection, and the tunnel's threads end.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(10_000):
            far.sendall(b"y" * 65536)
        pytest.fail("nobody reads this, and nobody said so")


def test_large_transfers_both_ways_at_once_over_many_connections(tunnel):
    payload = os.urandom(3 << 20)
    failed = []

    def talk(local: socket.socket) -> None:
        with local:
            sender = threading.Thread(target=lambda: (local.sendall(payload), local.shutdown(socket.SHUT_WR)))
            sender.start()
            if everything(local) != payload:
                failed.append(local)
            sender.join()

    def echo(far: socket.socket) -> None:
        while piece := far.recv(1 << 16):
            far.sendall(piece)
        far.shutdown(socket.SHUT_WR)

    threads = []
    for count in range(1, 21):
        local = client(tunnel)
        _, far = tunnel.connected(count)
        threads += [threading.Thread(target=talk, args=(local,)), threading.Thread(target=echo, args=(far,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []


def test_a_node_that_cannot_be_reached_is_told_and_the_next_connection_tries_again():
    told, refusal = [], ConnectError("nothing there")

    def connect():
        raise refusal

    tunnel = Tunnel(connect, listen_on_loopback(), told.append)
    for _ in range(2):
        with client(tunnel) as local:
            assert local.recv(1) == b""
    tunnel.close()
    assert told == [refusal, refusal]
    with pytest.raises(ConnectionRefusedError):
        client(tunnel)


def test_a_port_in_use_is_told_with_the_next_free_one():
    with listen_on_loopback() as held:
        port = held.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on this machine is in use") as raised:
            listen_on_loopback(port)
        free = int(raised.value.hint.split()[2])
        with listen_on_loopback(free) as other, listen_on_next_free_port(port) as near:
            assert other.getsockname()[1] == free
            assert near.getsockname()[1] not in (port, free)


def test_a_port_for_the_administrator_has_one_above(monkeypatch):
    real = socket.create_server

    def only_root(address, **more):
        if address[1] == 80:
            raise PermissionError(13, "Permission denied")
        return real(address, **more)

    monkeypatch.setattr("socket.create_server", only_root)
    with pytest.raises(UsageError, match="requires root") as raised:
        listen_on_loopback(80)
    assert raised.value.hint.startswith("use port 808")


def test_no_port_at_all_is_told(monkeypatch):
    def full(*_args, **_more):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("socket.create_server", full)
    with pytest.raises(StateError, match="no local port is available for a tunnel: Too many open files"):
        listen_on_loopback()
