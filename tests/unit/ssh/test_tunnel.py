"""The local side of a tunnel, with real sockets and a socket as the remote end."""

import contextlib
import os
import socket
import threading

import pytest

from cloudgpu.errors import ConnectError, StateError, UsageError
from cloudgpu.ssh.forwarding import Tunnel, listen_on_loopback, listen_on_next_free_port


class Far:
    """The remote end of a channel: a socket with the interface of a channel."""

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
        """Simulate a lost connection to the node."""
        self.broken = True
        self.close()


@pytest.fixture
def tunnel():
    """A tunnel, the remote ends of its connections, and its reported errors."""
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


def test_tunnel_listens_on_loopback_only(tunnel):
    assert tunnel._listener.getsockname()[0] == "127.0.0.1"


def test_half_closed_connections_stay_half_closed_in_both_directions(tunnel):
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


def test_interrupted_response_resets_the_connection(tunnel):
    with client(tunnel) as local:
        channel, far = tunnel.connected()
        far.sendall(b"half of")
        assert local.recv(100) == b"half of"
        channel.break_off()
        with pytest.raises(ConnectionResetError):
            local.recv(100)


def test_disconnected_client_closes_the_remote_end(tunnel):
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


def test_large_transfers_run_in_both_directions_over_20_connections(tunnel):
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


def test_unreachable_node_is_reported_and_retried_on_next_connection():
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


def test_port_in_use_error_suggests_the_next_free_port():
    with listen_on_loopback() as held:
        port = held.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} on this machine is in use") as raised:
            listen_on_loopback(port)
        free = int(raised.value.hint.split()[2])
        with listen_on_loopback(free) as other, listen_on_next_free_port(port) as near:
            assert other.getsockname()[1] == free
            assert near.getsockname()[1] not in (port, free)


def test_privileged_port_error_suggests_a_higher_port(monkeypatch):
    real = socket.create_server

    def only_root(address, **more):
        if address[1] == 80:
            raise PermissionError(13, "Permission denied")
        return real(address, **more)

    monkeypatch.setattr("socket.create_server", only_root)
    with pytest.raises(UsageError, match="requires root") as raised:
        listen_on_loopback(80)
    assert raised.value.hint.startswith("use port 808")


def test_no_available_local_port_is_a_state_error(monkeypatch):
    def full(*_args, **_more):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("socket.create_server", full)
    with pytest.raises(StateError, match="no local port is available for a tunnel: Too many open files"):
        listen_on_loopback()
