"""One at a time; a killed holder holds nothing."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.clock import ManualClock
from cloudgpu.engine import lease as lease_module
from cloudgpu.engine.lease import STALE_AFTER_S, ClusterLease
from cloudgpu.errors import BusyError, NewerFormatError, StateError

START = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "demo" / "lease"


def test_second_is_told_who_and_since_when(path):
    clock = ManualClock(START)
    with ClusterLease(path, clock, "ada").hold():
        clock.sleep(3600)
        with pytest.raises(BusyError) as caught, ClusterLease(path, clock, "bob").hold():
            pass
    assert "ada" in caught.value.message
    assert str(os.getpid()) in caught.value.message
    assert "2026-11-21T00:00:00" in caught.value.message
    assert "demo" in caught.value.message


def test_given_back_at_the_end_and_on_failure(path):
    for _ in range(2):
        with pytest.raises(ValueError, match="x"), ClusterLease(path, ManualClock(START), "ada").hold():
            raise ValueError("x")
        assert not path.exists()


def test_a_killed_holder_holds_nothing(path):
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
def test_stale_by_boot_or_process(path, field, value):
    with ClusterLease(path, ManualClock(START), "ada").hold():
        held = json.loads(path.read_text())
    path.write_text(json.dumps({**held, field: value}))
    with ClusterLease(path, ManualClock(START), "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"


def test_another_machine_is_believed_while_its_heart_beats(path):
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


def test_heart_beats(path, monkeypatch):
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


def test_taken_over_is_noticed(path):
    with ClusterLease(path, ManualClock(START), "ada").hold() as lease:
        lease.check()
        held = json.loads(path.read_text())
        path.write_text(json.dumps({**held, "nonce": "other", "owner": "bob"}))
        with pytest.raises(BusyError, match="taken over by bob"):
            lease.check()
    assert json.loads(path.read_text())["owner"] == "bob", "somebody else's lease is not given back"


@pytest.mark.parametrize("rubbish", ["", "{", "[]", '{"pid": 1}', "\0\0"])
def test_rubbish_is_nobody_s(path, rubbish):
    path.parent.mkdir()
    path.write_text(rubbish)
    assert ClusterLease(path, ManualClock(START), "x").holder() is None
    with ClusterLease(path, ManualClock(START), "ada").hold() as lease:
        assert lease.holder().owner == "ada"


def test_the_folder_may_go_while_it_is_held(path):
    with ClusterLease(path, ManualClock(START), "ada").hold():
        for found in path.parent.iterdir():
            found.unlink()
        path.parent.rmdir()
    assert not path.parent.exists()


def test_unwritable(tmp_path):
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


def test_of_many_at_once_one_wins(path, monkeypatch):
    read = ClusterLease._read

    def slow_read(self):
        """Make the moment between looking and taking long enough for everybody."""
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
    """A holder on another machine, as its lease file shows it."""
    with ClusterLease(path, ManualClock(heartbeat), "ada").hold():
        row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "host": "elsewhere"}))


class Beating(ManualClock):
    """While one waits, the holder elsewhere writes its heartbeats, by its own clock."""

    def __init__(self, start, path, theirs):
        super().__init__(start)
        self.path, self.theirs = path, theirs

    def sleep(self, seconds):
        super().sleep(seconds)
        self.theirs += timedelta(seconds=seconds)
        self.path.write_text(json.dumps({**json.loads(self.path.read_text()), "heartbeat": self.theirs.isoformat()}))


JUMPS = [timedelta(days=2), timedelta(hours=-1), timedelta(minutes=2)]


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_was_set_takes_no_lease_from_the_living(path, jump):
    elsewhere(path, START)
    with (
        pytest.raises(BusyError, match="elsewhere"),
        ClusterLease(path, Beating(START + jump, path, START), "bob").hold(),
    ):
        pass
    assert ClusterLease(path, Beating(START + jump, path, START), "bob").holder().owner == "ada"


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_was_set_leaves_no_lease_to_the_dead(path, jump):
    elsewhere(path, START)
    clock = ManualClock(START + jump)
    assert ClusterLease(path, clock, "bob").holder() is None
    with ClusterLease(path, clock, "bob").hold():
        assert json.loads(path.read_text())["owner"] == "bob"
    assert clock.monotonic() < 60


def failing(*_args, **_more):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("broken", ["_replace", "_locked"])
def test_a_lease_that_is_not_required_says_why_it_is_not_held(path, monkeypatch, broken):
    error = StateError("cannot write") if broken == "_locked" else OSError(errno.ENOSPC, "full")

    def fails(*_args):
        raise error

    monkeypatch.setattr(ClusterLease, broken, fails)
    with pytest.raises(StateError), ClusterLease(path, ManualClock(START), "ada").hold():
        pytest.fail("it is required")
    with ClusterLease(path, ManualClock(START), "ada").hold(required=False) as lease:
        assert lease.problem
    assert not path.exists()


def test_who_needs_no_lease_still_waits_for_a_living_holder(path, monkeypatch):
    with ClusterLease(path, ManualClock(START), "ada").hold(), monkeypatch.context() as patched:
        patched.setattr(ClusterLease, "_locked", unwritable)
        with pytest.raises(BusyError), ClusterLease(path, ManualClock(START), "bob").hold(required=False):
            pytest.fail("ada holds it")


def unwritable(*_args):
    raise StateError("cannot write")


def test_a_disk_that_fails_while_it_is_held_ends_no_work(path, monkeypatch):
    with ClusterLease(path, ManualClock(START), "ada").hold(tidy=True) as lease:
        monkeypatch.setattr(lease_module.os, "open", failing)
    assert not lease.problem
    assert path.exists()


@pytest.mark.parametrize("required", [True, False])
def test_a_lease_of_a_newer_format_is_refused_by_its_number_and_left_alone(path, required):
    """Its holder cannot be read, and may be running. A deletion, which goes on without a lease, is no exception."""
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
def test_a_format_that_is_no_newer_number_is_ignored(path, number):
    path.parent.mkdir()
    path.write_text(json.dumps({"format": number}))
    with ClusterLease(path, ManualClock(START), "bob").hold():
        assert json.loads(path.read_text())["format"] == 1
