"""A rehearsal server that is still stopping, because `rehearsal stop` was killed or another command stopped it."""

import os
import time

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.server import process
from tests.rehearsal.fake_nodes import FakeNodeHost

pytestmark = pytest.mark.rehearsal

WAITS = 5
"""How often a command waits for the stopping server before the server exits."""


class StoppingServer:
    """A server that has closed its endpoint, and exits at the fifth wait of the command under test."""

    def __init__(self, server_process, monkeypatch):
        self.server = server_process
        self.home = server_process.home
        self.files = RehearsalFiles.of(self.home)
        self._may_exit = self.home.root / "may-exit"
        self._waits = 0
        self.spawned = []
        monkeypatch.setattr(client, "SystemClock", lambda: self)
        monkeypatch.setattr(process, "spawn", self._spawn)

    now = staticmethod(SystemClock().now)
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds):
        self._waits += 1
        if self._waits == WAITS:
            self.let_exit()
        time.sleep(seconds)

    def let_exit(self):
        self._may_exit.touch()

    def start_and_stop(self):
        """Start a server, and stop it as a `rehearsal stop` that is killed after its call."""
        self._may_exit.unlink(missing_ok=True)
        self._waits = 0
        self.server.start(prepare=self._hold)
        client.call(self.server.cloud, "POST", "stop")
        while client.find_running(self.home) is not None:
            time.sleep(0.005)

    def _hold(self):
        close = FakeNodeHost.close

        def close_late(host):
            while not self._may_exit.exists():
                time.sleep(0.005)
            close(host)

        FakeNodeHost.close = close_late

    def _spawn(self, *_):
        assert process.running_server_pid(self.files) is None, "started a server while the other one was stopping"
        self.spawned.append(self.on_spawn())
        return self.spawned[-1]

    def on_spawn(self):
        self.server.start()
        return self.server.cloud.pid


@pytest.fixture
def stopping(server_process, monkeypatch):
    stopping = StoppingServer(server_process, monkeypatch)
    stopping.start_and_stop()
    yield stopping
    stopping.let_exit()


def test_stop_waits_for_a_server_that_is_stopping(stopping):
    """It used to start another server only to stop it, and failed if that server gave up waiting for the lock."""
    assert client.stop(stopping.home) is True
    assert process.running_server_pid(stopping.files) is None
    assert stopping.spawned == []
    assert client.stop(stopping.home) is False


def test_start_waits_for_a_server_that_is_stopping(stopping):
    """The new server used to give up waiting for the lock: `another rehearsal server is already running`."""
    cloud = client.ensure_running(stopping.home)
    assert [cloud.pid] == stopping.spawned
    assert client.stop(stopping.home) is True


def test_start_tries_again_after_another_server_took_the_lock_and_stopped(stopping, monkeypatch):
    """A command that was killed can leave a server that has not taken the lock yet."""

    def lose():
        monkeypatch.setattr(stopping, "on_spawn", type(stopping).on_spawn.__get__(stopping))
        stopping.start_and_stop()
        ours = os.fork()
        if not ours:
            os._exit(12)
        return ours

    monkeypatch.setattr(stopping, "on_spawn", lose)
    cloud = client.ensure_running(stopping.home)
    assert [cloud.pid] == stopping.spawned[1:]


def test_start_reports_why_its_server_exited(stopping, monkeypatch):
    def fail():
        stopping.files.log.write_text("no memory\n")
        ours = os.fork()
        if not ours:
            os._exit(1)
        return ours

    monkeypatch.setattr(stopping, "on_spawn", fail)
    with pytest.raises(RehearsalError, match="the rehearsal server exited: no memory"):
        client.ensure_running(stopping.home)
    assert len(stopping.spawned) == 1


@pytest.mark.parametrize("nodes_left", [False, True])
def test_stop_succeeds_if_the_server_ends_before_the_call(server_process, monkeypatch, nodes_left):
    """Two `rehearsal stop` at once, or a server that was told to leave its nodes running."""
    server_process.start()
    left, calls, real_call = [nodes_left], [], client.call

    def call(cloud, method, name, *args, **more):
        if name == "stop" and not calls:
            server_process.end()
        if name == "stop":
            calls.append(cloud.pid)
        return real_call(cloud, method, name, *args, **more)

    def start(_home):
        left.clear()
        server_process.start()
        return server_process.cloud

    monkeypatch.setattr(client, "call", call)
    monkeypatch.setattr(client, "ensure_running", start)
    monkeypatch.setattr(NodeHostClient, "running", lambda _: any(left))
    assert client.stop(server_process.home) is True
    assert len(calls) == 1 + nodes_left
    assert client.find_running(server_process.home) is None
