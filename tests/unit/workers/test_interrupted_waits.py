"""Waits in the main thread and in threads end at SIGINT and SIGTERM, and at faults that a retry cannot heal."""

import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cloudgpu.aws.session.eventual_consistency import poll, retry
from cloudgpu.cli.terminal.interruption import interruptions
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Cancelled, CancelScope, SystemClock
from cloudgpu.engine.direct.delete import run_in_dependency_order
from cloudgpu.engine.direct.deployment import WatchedClock
from cloudgpu.errors import CloudGpuError, ConnectError, SshSetupError, ThrottledError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.fanout import TerminatedNodeError, run_on_all, wait_for_all
from cloudgpu.ssh.forwarding import CarryingCommand, ProgramCarrier
from cloudgpu.ssh.keys import generate_key_pair
from cloudgpu.workers import Workers
from tests.fake_host import FakeHost

HOURS_S = 7200.0


class SignallingClock(SystemClock):
    """A clock on which the user interrupts the command as soon as it waits. Every wait would take hours."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._first = threading.Lock()
        self.waits = 0

    def sleep(self, seconds: float) -> None:
        """Send the signal at the first wait, then wait for hours."""
        assert seconds >= 0
        self.waits += 1
        if self._first.acquire(blocking=False):
            while not main_thread_waits():
                time.sleep(0.001)
            # A signal that another thread receives does not wake the main thread, as one that comes before it blocks.
            signal.pthread_kill(threading.get_ident(), self._number)
        super().sleep(HOURS_S)


def main_thread_waits() -> bool:
    """Return True if the main thread waits for the calls of its threads, and is not still starting a thread."""
    main = threading.main_thread()
    frames = [frame.name for frame in traceback.extract_stack(sys._current_frames()[main.ident or 0])]
    waits = bool({"wait", "join"} & {*frames})
    return threading.current_thread() is main or (waits and "start" not in frames)


class CountingClock(SystemClock):
    """A clock on which waits take no time, and which counts them."""

    waits = 0

    def sleep(self, seconds: float) -> None:
        """Count the wait."""
        assert seconds >= 0
        self.waits += 1


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ssh") / "id"
    path.write_text(generate_key_pair()[0])
    return path


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port that refuses connections while the test runs."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def node(index: int, port: int = 22) -> Node:
    pins = ("SHA256:x",)
    return Node(index, f"i-{index}", "127.0.0.1", port, "ubuntu", pins, "10.0.0.1", "g5.xlarge", "a", "A10G", 1, True)


def hosts(count: int) -> list[FakeHost]:
    return [FakeHost(node(index)) for index in range(count)]


def throttled() -> None:
    raise ThrottledError("slow down", code="RequestLimitExceeded")


def nested(clock: SystemClock) -> None:
    """Wait in threads of a thread, as a deletion in several regions does."""
    with Workers(1) as outer:
        list(outer.map(lambda _: run_on_all(hosts(2), lambda _: clock.sleep(1)), [0]))


def more_calls_than_threads(clock: SystemClock) -> None:
    with Workers(2) as pool:
        for _ in range(50):
            pool.submit(clock.sleep, 1)


WAITS: dict[str, Callable[[SystemClock], object]] = {
    "the main thread": lambda clock: clock.sleep(1),
    "a poll": lambda clock: poll(clock, lambda: None, what="x", total_s=HOURS_S),
    "a retry": lambda clock: retry(clock, throttled, when=lambda _: True, total_s=HOURS_S),
    "an operation of the engine": lambda clock: WatchedClock(clock, what="x", on_wait=lambda _: None).sleep(1),
    "all nodes": lambda clock: run_on_all(hosts(3), lambda _: clock.sleep(1)),
    "a poll on all nodes": lambda clock: run_on_all(
        hosts(3), lambda _: poll(clock, lambda: None, what="x", total_s=HOURS_S)
    ),
    "resources in order": lambda clock: run_in_dependency_order({"b": {"a"}, "a": set()}, lambda _: clock.sleep(1)),
    "threads of threads": nested,
    "more calls than threads": more_calls_than_threads,
}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_signal_ends_every_wait(wait: Callable[[SystemClock], object], number: int) -> None:
    clock = SignallingClock(number)
    with interruptions.handle_signals(Screen()), pytest.raises(KeyboardInterrupt):
        wait(clock)
    assert clock.waits


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_signal_ends_the_wait_for_ssh(key: Path, closed_port: int, number: int) -> None:
    clock, came = SignallingClock(number), []
    nodes = [node(index, closed_port) for index in range(3)]
    with interruptions.handle_signals(Screen()), pytest.raises(KeyboardInterrupt):
        wait_for_all(nodes, key, clock=clock, deadline_s=HOURS_S, came=came.append)
    assert (clock.waits > 0, came) == (True, [])


def test_call_that_does_not_respond_is_abandoned_after_an_interrupt() -> None:
    released, blocked = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        released.wait()

    def interrupted() -> None:
        with Workers(1) as pool:
            pool.submit(block)
            blocked.wait()
            raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        released.set()


def test_after_a_failure_running_calls_finish_and_the_others_are_dropped() -> None:
    started, finished = [], []
    go = threading.Event()

    def work(number: int) -> None:
        started.append(number)
        if number == 0:
            raise ZeroDivisionError
        go.wait()
        finished.append(number)

    def results() -> None:
        with Workers(2) as pool:
            answers = pool.map(work, range(20))
            try:
                next(answers)
            finally:
                answers.close()  # type: ignore[attr-defined]
                go.set()

    with pytest.raises(ZeroDivisionError):
        results()
    assert sorted(started) == [0, *sorted(finished)]
    assert len(started) < 20


def test_scope_inside_a_cancelled_scope_is_cancelled() -> None:
    outer = CancelScope()
    inner: list[CancelScope] = []
    outer.run(lambda: inner.append(CancelScope()))
    outer.cancel()
    assert inner[0].cancelled
    with pytest.raises(Cancelled):
        inner[0].run(lambda: None)
    assert not CancelScope().cancelled


def not_a_key(path: Path) -> None:
    path.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nbm90IGEga2V5\n-----END OPENSSH PRIVATE KEY-----\n")


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [Path.unlink, unreadable, not_a_key], ids=["missing", "unreadable", "damaged"])
def test_wait_for_ssh_ends_at_once_without_a_usable_key(
    tmp_path: Path, closed_port: int, damage: Callable[[Path], None]
) -> None:
    """The key fails while the nodes boot, after the first connections were refused."""
    key, clock = tmp_path / "id", CountingClock()
    damaged: list[bool] = []
    key.write_text(generate_key_pair()[0])

    def check(failed: Node, failure: ConnectError) -> None:
        assert failure.retryable
        if failed.index == 0 and not damaged:
            damaged.append(True)
            damage(key)

    nodes = [node(index, closed_port) for index in range(2)]
    outcomes = wait_for_all(nodes, key, clock=clock, deadline_s=HOURS_S, check=check)
    assert any(isinstance(outcome, SshSetupError) for outcome in outcomes.values())
    assert all(isinstance(outcome, ConnectError) for outcome in outcomes.values())


def fails(error: CloudGpuError) -> Callable[[Node], None]:
    def carrier(_node: Node) -> None:
        raise error

    return carrier


@pytest.mark.parametrize(
    "error",
    [
        SshSetupError("cannot start session-manager-plugin"),
        TerminatedNodeError("node 0 is terminated"),
        CloudGpuError("access denied"),
    ],
)
def test_wait_for_ssh_ends_at_faults_that_cannot_heal(key: Path, error: CloudGpuError) -> None:
    clock = CountingClock()
    outcomes = wait_for_all([node(0)], key, clock=clock, deadline_s=HOURS_S, carrier=fails(error))
    assert (outcomes, clock.waits) == ({0: error}, 0)


def test_missing_proxy_command_is_not_retried(key: Path) -> None:
    clock = CountingClock()
    carrier = ProgramCarrier(lambda: CarryingCommand(("/no/such/program",), {}))
    outcomes = wait_for_all([node(0)], key, clock=clock, deadline_s=HOURS_S, carrier=lambda _: carrier)
    assert (type(outcomes[0]), clock.waits) == (SshSetupError, 0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PermissionError(1, "Operation not permitted"), SshSetupError),
        (OSError(97, "Address family not supported by protocol"), SshSetupError),
        (ConnectionRefusedError(111, "Connection refused"), ConnectError),
        (OSError(113, "No route to host"), ConnectError),
        (OSError(101, "Network is unreachable"), ConnectError),
        (socket.gaierror(-3, "Temporary failure in name resolution"), ConnectError),
    ],
)
def test_local_network_faults_are_told_from_those_of_a_booting_node(
    key: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: type[ConnectError]
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", refused)
    outcomes = wait_for_all([node(0)], key, clock=CountingClock(), deadline_s=0.0)
    assert type(outcomes[0]) is kind
