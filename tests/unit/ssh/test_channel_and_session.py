"""The order of channel messages, and how a session distinguishes a finished command from a lost connection."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import paramiko
import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.base import TimeLimitError
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.session import LEAST_BYTES_PER_S, CommandSession, KeepaliveLimits
from cloudgpu.ssh.transport import OrderlyChannel
from tests.manual_clock import ManualClock

NAMES = {93: "window", 94: "data", 96: "eof", 97: "close", 98: "request"}


class Wire:
    """A fake transport that records messages; `before` runs after a message is built and before it is sent."""

    packets_received = 0

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.up = True
        self.cause: Exception | None = None

    def _send_user_message(self, message: paramiko.Message) -> None:
        before, self.before = self.before, lambda: None
        before()
        self.sent.append(NAMES[message.asbytes()[0]])

    def _sanitize_packet_size(self, size: int) -> int:
        return size

    def _unlink_channel(self, number: int) -> None:
        pass

    def get_log_channel(self) -> str:
        return "cloudgpu.ssh"

    def get_exception(self) -> Exception | None:
        return self.cause

    def is_active(self) -> bool:
        return self.up

    def hang_up(self) -> None:
        self.up = False


def opened() -> tuple[OrderlyChannel, Wire]:
    wire = Wire()
    channel = OrderlyChannel(1)
    channel._set_transport(wire)
    channel._set_window(1 << 20, 1 << 15)
    channel._set_remote_channel(7, 1 << 20, 1 << 15)
    return channel, wire


def peer_closes(channel: OrderlyChannel) -> Callable[[], None]:
    return lambda: channel._handle_close(paramiko.Message())


def feed(channel: OrderlyChannel, content: bytes) -> None:
    channel._feed(paramiko.Message(len(content).to_bytes(4, "big") + content))


@pytest.mark.parametrize(
    ("speak", "order"),
    [
        (lambda channel: channel.shutdown_write(), ["eof", "close"]),
        (lambda channel: channel.sendall(b"x"), ["data", "eof", "close"]),
        (lambda channel: channel.request("exec", "true", reply=True), ["request", "eof", "close"]),
        (lambda channel: channel.recv(1 << 20), ["window", "eof", "close"]),
    ],
)
def test_no_message_is_sent_after_channel_close(speak: Callable[[OrderlyChannel], None], order: list[str]) -> None:
    channel, wire = opened()
    feed(channel, bytes(1 << 18))
    wire.before = peer_closes(channel)
    speak(channel)
    assert wire.sent == order
    with pytest.raises(OSError, match="closed"):
        channel.request("exec", "true", reply=True)
    channel.close()
    assert wire.sent == order


@pytest.mark.parametrize("trouble", [EOFError(), OSError("broken pipe"), paramiko.SSHException("gone")])
def test_closing_channel_on_lost_connection_is_not_an_error(trouble: Exception) -> None:
    """A tunneled connection closes in a paramiko thread, whose traceback the user would see."""
    channel, wire = opened()

    def broken() -> None:
        raise trouble

    wire.before = broken
    channel.close()
    assert channel.closed
    assert wire.sent == []


def test_idle_channel_close_is_sent_immediately() -> None:
    channel, wire = opened()
    peer_closes(channel)()
    assert wire.sent == ["eof", "close"]


def session(channel: OrderlyChannel, wire: Wire) -> CommandSession:
    started = CommandSession(wire, channel, who="node 0", clock=SystemClock(), keepalive=KeepaliveLimits())  # type: ignore[arg-type]
    started.start("true", b"")
    return started


def test_channel_closed_without_exit_code_yields_255() -> None:
    channel, wire = opened()
    running = session(channel, wire)
    feed(channel, b"last words")
    peer_closes(channel)()
    assert list(running.output()) == [b"last words"]
    assert running.exit_code == 255
    assert wire.up


@pytest.mark.parametrize("cause", [None, EOFError()])
def test_lost_connection_raises_instead_of_ending_the_command(cause: Exception | None) -> None:
    channel, wire = opened()
    wire.cause = cause
    running = session(channel, wire)
    feed(channel, b"half a li")
    channel._unlink()  # what paramiko does to every channel when the connection is gone
    output = running.output()
    assert next(output) == b"half a li"
    with pytest.raises(ConnectError, match=r"lost the connection to node 0: the other end closed it$"):
        next(output)


class LostLink(Wire):
    """A connection that is lost when a session is opened; paramiko then raises an EOFError without a message."""

    channels = 0

    def open_session(self, *, timeout: float, window_bytes: int) -> OrderlyChannel:
        raise EOFError


def test_lost_connection_without_a_message_names_a_cause() -> None:
    node = Node(0, "i-0", "127.0.0.1", 1, "lea", ("SHA256:x",), "127.0.0.1", "p3.2xlarge", "z", "V100", 1, True)
    host = SshHost(node, Path("key"), clock=SystemClock(), timeout_s=1, via=None, keepalive=KeepaliveLimits())
    host._links = [LostLink()]
    with pytest.raises(ConnectError, match=r"lost the connection to node 0 .*: the other end closed it$"):
        host.run(RemoteCommand("true"), timeout_s=1)


def test_exit_code_without_end_of_output_raises_connect_error() -> None:
    channel, wire = opened()
    running = session(channel, wire)
    channel.exit_status = 0
    channel.status_event.set()
    channel._unlink()
    with pytest.raises(ConnectError, match="lost the connection"):
        list(running.output())


def test_rejected_exec_request_raises_connect_error() -> None:
    channel, wire = opened()
    running = session(channel, wire)
    channel._request_failed(paramiko.Message())
    with pytest.raises(ConnectError, match="refuses to run commands"):
        list(running.output())


def test_time_limit_counts_from_the_last_renewal():
    channel, wire = opened()
    clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC))
    session = CommandSession(wire, channel, who="node 1", clock=clock, keepalive=KeepaliveLimits())
    pieces = session.output(10.0)
    channel.in_buffer.feed(b"one")
    assert next(pieces) == b"one"
    clock.sleep(9)
    session.renew()
    clock.sleep(9)
    wire.packets_received += 1
    channel.in_buffer.feed(b"two")
    assert next(pieces) == b"two"
    clock.sleep(1)
    with pytest.raises(TimeLimitError, match="node 1: the command exceeded its time limit of 10 s"):
        next(pieces)


def test_last_mebibyte_of_standard_error_is_kept() -> None:
    channel, wire = opened()
    running = session(channel, wire)
    output = running.output()
    for number in range(40):
        channel.in_stderr_buffer.feed(bytes([65 + number % 26]) * 65536)
        channel.in_buffer.feed(b"x")
        assert next(output) == b"x"
    while channel.recv_stderr_ready():
        channel.in_buffer.feed(b"x")
        next(output)
    assert len(running.stderr) == 1 << 20
    assert running.stderr.endswith(bytes([65 + 39 % 26]) * 65536)
    running.close()


def test_node_that_sends_a_few_bytes_before_each_limit_is_given_up():
    """Each byte restarted the limit of a transfer, so a stalled node could delay the deletion forever."""
    channel, wire = opened()
    clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC))
    session = CommandSession(wire, channel, who="node 1", clock=clock, keepalive=KeepaliveLimits())

    def read_one_byte_a_second() -> None:
        for piece in session.output(300.0):
            session.count(len(piece))
            wire.packets_received += 1
            channel.in_buffer.feed(b"x")
            clock.sleep(1)

    channel.in_buffer.feed(b"x")
    with pytest.raises(TimeLimitError, match="of 300 s, in which only 300 B were transferred"):
        read_one_byte_a_second()


def test_slow_transfer_that_makes_progress_continues():
    channel, wire = opened()
    clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC))
    session = CommandSession(wire, channel, who="node 1", clock=clock, keepalive=KeepaliveLimits())
    pieces = session.output(300.0)
    for _ in range(100):
        wire.packets_received += 1
        channel.in_buffer.feed(bytes(LEAST_BYTES_PER_S * 299))
        session.count(len(next(pieces)))
        wire.packets_received += 1
        channel.in_buffer.feed(bytes(LEAST_BYTES_PER_S))
        session.count(len(next(pieces)))
        clock.sleep(299)


def test_renewals_do_not_extend_the_limit_for_the_whole_output():
    channel, wire = opened()
    clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC))
    session = CommandSession(wire, channel, who="node 1", clock=clock, keepalive=KeepaliveLimits())

    def read_and_renew() -> None:
        for _ in session.output(10.0, 60.0):
            session.renew()
            wire.packets_received += 1
            channel.in_buffer.feed(b"x")
            clock.sleep(9)

    channel.in_buffer.feed(b"x")
    with pytest.raises(TimeLimitError, match="node 1: the command did not finish within 60 s"):
        read_and_renew()
