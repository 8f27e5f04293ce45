"""Only one command holds a cluster's lease; the lease of a killed process is free."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.engine import lease as lease_module
from cloudgpu.engine.lease import STALE_AFTER_S, ClusterLease
from cloudgpu.errors import BusyError, NewerFormatError, StateError
from cloudgpu.processes import System, this_system
from tests.manual_clock import ManualClock

START = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "demo" / "lease"


def test_second_command_reports_lease_holder_and_start_time(path):
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        clock.sleep(3600)
        with pytest.raises(BusyError) as caught, ClusterLease(path, clock, "bob").hold():
            pass
    assert "ada" in caught.value.message
    assert str(os.getpid()) in caught.value.message
    assert "2026-11-21T00:00:00" in caught.value.message
    assert "demo" in caught.value.message


def test_lease_is_released_at_end_and_on_failure(path):
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), ClusterLease(path, ManualClock(START), "ada").hold():
            raise ValueError("x")
        assert not path.exists()


def test_lease_of_killed_process_is_free(path):
    code = (
        "import sys, time; from pathlib import Path; from cloudgpu.clock import SystemClock\n"
        "from cloudgpu.engine.lease import ClusterLease\n"
        "with ClusterLease(Path(sys.argv[1]), SystemClock(), 'ada').hold():\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(BusyError, match=str(child.pid)), ClusterLease(path, ManualClock(START), "bob").hold():
            pass
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        with ClusterLease(path, ManualClock(START), "bob").hold():
            assert json.loads(path.read_text())["owner"] == "bob"


@pytest.mark.parametrize(
    ("field", "value"),
    [("boot", "another boot"), ("process_start", "1"), ("pid", 2**22 + 7)],
)
def test_lease_is_stale_after_reboot_or_process_exit(path, field, value):
    with ClusterLease(path, ManualClock(START), "ada").hold():
        held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, field: value}))
    with ClusterLease(path, ManualClock(START), "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"


def test_lease_of_other_host_is_valid_until_heartbeat_is_stale(path):
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, "host": "elsewhere", "pid": 1}))
    clock.sleep(STALE_AFTER_S - 1)
    with pytest.raises(BusyError, match="elsewhere"), ClusterLease(path, clock, "bob").hold():
        pass
    clock.sleep(2)
    with ClusterLease(path, clock, "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"


SYSTEMS = {
    "machine-with-the-same-name": System("another machine", "another boot", "pid:[4026531836]"),
    "clone-with-the-same-machine-id": replace(this_system(), boot="another boot"),
    "container-of-this-machine": replace(this_system(), pid_namespace="pid:[4026532999]"),
    "older-version": System("", this_system().boot, ""),
}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
@pytest.mark.parametrize("age_s", [0, STALE_AFTER_S + 1, -3600])
def test_live_holder_in_another_system_with_the_same_host_name_keeps_its_lease(path, system, age_s):
    """Its process ID means nothing here: here, no process has it. Its heartbeat shows that it is alive."""
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        held = json.loads(path.read_text())
    held |= {"pid": 2**22 + 7, "machine": system.machine, "boot": system.boot, "pid_namespace": system.pid_namespace}

    class Watching(ManualClock):
        """A clock during whose sleeps the holder sends heartbeats, as its own clock tells the time."""

        def sleep(self, seconds):
            super().sleep(seconds)
            beat(self)

    def beat(at):
        heartbeat = (at.now() - timedelta(seconds=age_s)).isoformat()
        path.write_text(json.dumps({**held, "heartbeat": heartbeat}))

    watching = Watching(START)
    beat(watching)
    with pytest.raises(BusyError, match="on another machine or container named"):
        ClusterLease(path, watching, "bob").hold().__enter__()
    assert ClusterLease(path, watching, "bob").holder().owner == "ada"


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_lease_of_another_system_is_free_once_its_heartbeat_stops(path, system):
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        held = json.loads(path.read_text())
    fields = {"machine": system.machine, "boot": system.boot, "pid_namespace": system.pid_namespace}
    # The process ID is that of a process here, which is another one.
    path.write_text(json.dumps({**held, **fields, "process_start": "1"}))
    clock.sleep(STALE_AFTER_S + 1)
    with ClusterLease(path, clock, "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"


def test_heartbeat_is_updated_while_lease_is_held(path, monkeypatch):
    monkeypatch.setattr(lease_module, "HEARTBEAT_EVERY_S", 0.01)
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        clock.sleep(100)
        deadline = threading.Event()
        for _ in range(500):
            if "00:01:40" in json.loads(path.read_text())["heartbeat"]:
                break
            deadline.wait(0.01)
        assert "00:01:40" in json.loads(path.read_text())["heartbeat"]


def test_lease_takeover_is_detected(path):
    with ClusterLease(path, ManualClock(START), "ada").hold() as lease:
        lease.check()
        held = json.loads(path.read_text())
        path.write_text(json.dumps({**held, "nonce": "other", "owner": "bob"}))
        with pytest.raises(BusyError, match=f"the lease on {path.parent.name} was taken over by bob"):
            lease.check()
    assert json.loads(path.read_text())["owner"] == "bob", "somebody else's lease is not given back"


def test_removal_of_a_lease_is_detected(path):
    with ClusterLease(path, ManualClock(START), "ada").hold() as lease:
        path.unlink()
        with pytest.raises(BusyError, match=f"the lease on {path.parent.name} was removed"):
            lease.check()


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"pid": 1}', "\0\0"])
def test_corrupt_lease_file_has_no_holder(path, rubbish):
    path.parent.mkdir()
    path.write_text(rubbish)
    assert ClusterLease(path, ManualClock(START), "x").holder() is None
    with ClusterLease(path, ManualClock(START), "ada").hold() as lease:
        assert lease.holder().owner == "ada"


def test_lease_folder_can_be_deleted_while_held(path):
    with ClusterLease(path, ManualClock(START), "ada").hold():
        for found in path.parent.iterdir():
            found.unlink()
        path.parent.rmdir()
    assert not path.parent.exists()


def test_unwritable_lease_raises_state_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StateError), ClusterLease(tmp_path / "file" / "lease", ManualClock(START), "ada").hold():
        pass


def _rush(path, gate, results):
    gate.wait()
    try:
        with ClusterLease(path, ManualClock(START), str(os.getpid())).hold():
            results.put("won")
            gate.wait()
    except BusyError:
        results.put("told")
        gate.wait()


def test_only_single_process_gets_lease_under_contention(path, monkeypatch):
    read = ClusterLease._read

    def slow_read(self):
        """Widen the window between reading and taking the lease."""
        found = read(self)
        threading.Event().wait(0.05)
        return found

    monkeypatch.setattr(ClusterLease, "_read", slow_read)
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(6), context.Queue()
    processes = [context.Process(target=_rush, args=(path, gate, results)) for _ in range(6)]
    for process in processes:
        process.start()
    outcomes = sorted(results.get(timeout=30) for _ in processes)
    for process in processes:
        process.join(30)
    assert outcomes == ["told"] * 5 + ["won"]


def elsewhere(path, heartbeat):
    """Write the lease file of a holder on another machine."""
    with ClusterLease(path, ManualClock(heartbeat), "ada").hold():
        row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "host": "elsewhere"}))


class Beating(ManualClock):
    """A clock that updates the heartbeat of a holder on another machine whenever it sleeps."""

    def __init__(self, start, path, theirs):
        super().__init__(start)
        self.path, self.theirs = path, theirs

    def sleep(self, seconds):
        super().sleep(seconds)
        self.theirs += timedelta(seconds=seconds)
        self.path.write_text(json.dumps({**json.loads(self.path.read_text()), "heartbeat": self.theirs.isoformat()}))


JUMPS = [timedelta(days=2), timedelta(hours=-1), timedelta(minutes=2)]


@pytest.mark.parametrize("jump", JUMPS)
def test_clock_jump_does_not_expire_live_lease(path, jump):
    elsewhere(path, START)
    with (
        pytest.raises(BusyError, match="elsewhere"),
        ClusterLease(path, Beating(START + jump, path, START), "bob").hold(),
    ):
        pass
    assert ClusterLease(path, Beating(START + jump, path, START), "bob").holder().owner == "ada"


@pytest.mark.parametrize("jump", JUMPS)
def test_clock_jump_does_not_keep_stale_lease(path, jump):
    elsewhere(path, START)
    clock = ManualClock(START + jump)
    assert ClusterLease(path, clock, "bob").holder() is None
    with ClusterLease(path, clock, "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"
    assert clock.monotonic() < 60


def failing(*_args, **_more):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("broken", ["_replace", "_locked"])
def test_optional_lease_reports_why_not_held(path, monkeypatch, broken):
    error = StateError("cannot write") if broken == "_locked" else OSError(errno.ENOSPC, "full")

    def fails(*_args):
        raise error

    monkeypatch.setattr(ClusterLease, broken, fails)
    with pytest.raises(StateError), ClusterLease(path, ManualClock(START), "ada").hold():
        pytest.fail("it is required")
    with ClusterLease(path, ManualClock(START), "ada").hold(required=False) as lease:
        assert lease.problem
    assert not path.exists()


def test_optional_lease_still_respects_live_holder(path, monkeypatch):
    with ClusterLease(path, ManualClock(START), "ada").hold(), monkeypatch.context() as patched:
        patched.setattr(ClusterLease, "_locked", unwritable)
        with pytest.raises(BusyError), ClusterLease(path, ManualClock(START), "bob").hold(required=False):
            pytest.fail("ada holds it")


def unwritable(*_args):
    raise StateError("cannot write")


def test_disk_failure_on_release_raises_nothing(path, monkeypatch):
    with ClusterLease(path, ManualClock(START), "ada").hold(tidy=True) as lease:
        monkeypatch.setattr(lease_module.os, "open", failing)
    assert not lease.problem
    assert path.exists()


@pytest.mark.parametrize("required", [True, False])
def test_lease_in_newer_format_is_rejected_and_unchanged(path, required):
    """Its holder may be running. This also applies to a deletion, which otherwise needs no lease."""
    path.parent.mkdir()
    content = json.dumps({"format": 2, "holders": [{"owner": "ada"}]})
    path.write_text(content)
    lease = ClusterLease(path, ManualClock(START), "bob")
    refused = pytest.raises(
        NewerFormatError, match=r"\(lease\) has format 2, but this version of cloudgpu reads formats up to 1$"
    )
    with refused as caught, lease.hold(required=required):
        pass
    assert "upgrade cloudgpu" in caught.value.hint
    with pytest.raises(NewerFormatError, match="format 2"):
        lease.holder()
    assert path.read_text() == content


@pytest.mark.parametrize("number", ["x", None, True, [], 0])
def test_invalid_lease_format_number_is_ignored(path, number):
    path.parent.mkdir()
    path.write_text(json.dumps({"format": number}))
    with ClusterLease(path, ManualClock(START), "bob").hold():
        assert json.loads(path.read_text())["format"] == 1
