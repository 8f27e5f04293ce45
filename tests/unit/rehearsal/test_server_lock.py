"""The lock of the rehearsal server says which process holds it, and on which machine."""

import fcntl
import os

import pytest

from cloudgpu.errors import RehearsalError
from cloudgpu.paths import Home
from cloudgpu.processes import System, this_system
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.client import reset
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.server import process
from cloudgpu.rehearsal.server.main import hold_server_lock
from tests.manual_clock import ManualClock
from tests.unit.engine.test_lease import START

ELSEWHERE = ("m/boot/pid:[1]", f"{this_system().machine}/{this_system().boot}/pid:[1]")


@pytest.fixture
def files(tmp_path):
    files = RehearsalFiles.of(Home(tmp_path).ensure())
    files.root.mkdir(parents=True)
    return files


def test_server_here_is_found_by_its_lock(files):
    assert process.running_server_pid(files) is None
    with hold_server_lock(files):
        assert process.running_server_pid(files) == os.getpid()
    assert process.running_server_pid(files) is None


@pytest.mark.parametrize(("text", "pid"), [("", 0), ("4711", 4711), ("x", 0)])
def test_lock_of_an_older_version_holds_only_the_pid(files, text, pid):
    with files.server_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files.server_lock.write_text(text)
        assert process.running_server_pid(files) == pid


@pytest.mark.parametrize(
    ("system", "recorded", "shared"),
    [
        (System("m", "boot", "pid:[1]"), "", True),
        (System("m", "boot", "pid:[1]"), "m/boot/pid:[1]", True),
        (System("renamed", "boot", "pid:[1]"), "m/boot/pid:[1]", True),
        (System("m", "boot", "pid:[1]"), "m/boot/pid:[2]", False),
        (System("m", "boot", "pid:[1]"), "m/earlier/pid:[1]", False),
        (System("m", "", ""), "m//", True),
        (System("m", "", ""), "n//", False),
        (System("m", "boot", "pid:[1]"), "m", False),
    ],
)
def test_process_id_has_a_meaning_only_in_its_own_system(system, recorded, shared):
    """A system without boot IDs, such as macOS, is recognised by its machine."""
    assert system.shares_processes(recorded) is shared


class ReleasingClock(ManualClock):
    """A clock at whose third sleep a process exits, which releases its lock."""

    def __init__(self, lock):
        super().__init__(START)
        self.lock, self.sleeps = lock, 0

    def sleep(self, seconds):
        super().sleep(seconds)
        self.sleeps += 1
        if self.sleeps == 3:
            self.lock.close()


def test_stop_waits_for_a_node_host_that_still_stops_its_nodes(files, tmp_path, monkeypatch):
    """Its server was killed while it stopped, and the host has already removed its socket."""
    files.nodes.mkdir()
    lock = (files.nodes / "host.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    clock = ReleasingClock(lock)
    monkeypatch.setattr(client, "SystemClock", lambda: clock)
    assert client.stop(Home(tmp_path)) is False
    assert (clock.sleeps, lock.closed) == (3, True)


def test_stop_gives_up_on_a_server_that_never_responds(files, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "SystemClock", lambda: ManualClock(START))
    with hold_server_lock(files), pytest.raises(RehearsalError, match="did not respond within 60 s") as caught:
        client.stop(Home(tmp_path))
    assert caught.value.hint == "cloudgpu rehearsal reset"


@pytest.mark.parametrize("system", ELSEWHERE)
def test_server_on_another_machine_or_in_another_container_is_left_alone(files, tmp_path, system, monkeypatch):
    """Its pid may be that of any process here, which must not be killed."""
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process of this machine was signalled"))
    with files.server_lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        files.server_lock.write_text(f"{os.getppid()} {system} login-2")
        for run in (client.stop, client.ensure_running, lambda home: reset(home, START)):
            with pytest.raises(RehearsalError, match="on another machine or in another container, login-2"):
                run(Home(tmp_path))
