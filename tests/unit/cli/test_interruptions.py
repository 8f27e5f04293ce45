"""Effects of the first and second signal, and the report of what is still running."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.app.cluster_status import NOTHING_RUNNING, StillRunning, storage_lines, swept_clusters_lines
from cloudgpu.backends.sweep import ClusterResources
from cloudgpu.cli import main
from cloudgpu.cli.terminal import interruption
from cloudgpu.cli.terminal.interruption import HANDLED_SIGNALS, Interruptions
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import SystemClock
from cloudgpu.paths import Home
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.state.storage_records import StorageRecord, StorageRecords
from tests.cluster_records import changed, cluster_record

NOW = SystemClock().now()
CLUSTER = cluster_record(created_at=NOW, expires_at=NOW, state="up", nodes=2,
                         instance_type="p3.2xlarge", node_hourly_usd="3.06")  # fmt: skip
RUN = RunRecord("plain-abc", "lab", "plain", "", "ann", "", "aws", NOW, state="running", ranks={"0": (0,)})


@pytest.fixture
def records(tmp_path):
    return RecordStore(Home(tmp_path / "home").ensure())


@pytest.fixture
def heard(monkeypatch):
    """Handle signals; record what the second signal writes and its exit code."""
    written, left = {1: "", 2: ""}, []
    monkeypatch.setattr(interruption, "_write", lambda where, text: written.update({where: written[where] + text}))
    monkeypatch.setattr(os, "_exit", left.append)
    interruptions = Interruptions()
    with interruptions.handle_signals(Screen(json_mode=True)):
        interruptions.tell(lambda: ["cluster lab is running"])
        yield interruptions, written, left


def test_first_signal_raises_keyboard_interrupt_and_second_exits(heard):
    interruptions, written, left = heard
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    assert (left, written) == ([], {1: "", 2: ""})
    os.kill(os.getpid(), signal.SIGHUP)
    assert left == [129]
    assert written[2].splitlines()[-1] == "cluster lab is running"
    document = json.loads(written[1])
    assert (document["error"]["exit_code"], document["left"]) == (129, ["cluster lab is running"])
    assert not interruptions.may_ask


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_exit_code_reflects_the_received_signal(heard, number, code):
    interruptions, _, _ = heard
    assert interruptions.exit_code(130) == 130
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert interruptions.exit_code(130) == code
    assert interruptions.exit_code(6) == 6
    assert interruptions.lines() == ["cluster lab is running"]


INTERRUPTED_IN_EXEC = """
import os, signal
from cloudgpu.cli import main

def interrupted(*_):
    try:
        exec("os.kill(os.getpid(), signal.SIGINT)")
    except KeyboardInterrupt:
        return 130

main._run = interrupted
main.entry()
"""


def test_interrupt_within_exec_ends_module_with_exit_code_instead_of_signal(tmp_path):
    """Importing a dataclass runs `exec`, and `python -m` then ends by SIGINT unless the interpreter's flag is reset."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_IN_EXEC)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    argv = [sys.executable, "-m", "interrupted"]
    ended = subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ended.returncode == 130, ended.stderr


def test_second_signal_exits_even_if_records_are_unreadable(heard):
    interruptions, written, left = heard
    interruptions.tell(lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert left == [130]
    assert "cannot tell what is still running" in written[2]


def test_ignored_signals_stay_ignored_and_handlers_are_restored():
    before = {one: signal.getsignal(one) for one in HANDLED_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptions().handle_signals(Screen()):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {one: signal.getsignal(one) for one in HANDLED_SIGNALS} == before


def test_running_resources_are_listed_with_price_and_commands(records):
    records.save_cluster(changed(CLUSTER, name="other"), NOW)
    still = StillRunning(records)
    assert still.lines() == [NOTHING_RUNNING]
    records.save_cluster(CLUSTER, NOW)
    records.save_run(RUN)
    assert still.lines() == [
        "run plain-abc may still be running",
        "    follow it: cloudgpu attach plain-abc",
        "    stop it:   cloudgpu cancel plain-abc",
        f"cluster lab is running: 2 x p3.2xlarge, $6.12 an hour, until it expires at {NOW:%Y-%m-%d %H:%M} UTC",
        "    delete it: cloudgpu down lab",
    ]
    assert "other" in "".join(StillRunning(records, ["other"]).lines())
    records.save_run(replace(RUN, state="succeeded"))
    assert still.lines()[0] == "run plain-abc has finished (succeeded); its outputs may still be on the nodes"


def test_records_that_cannot_be_read_do_not_stop_a_command_and_leave_what_runs_unknown(tmp_path):
    home = Home(tmp_path / "home").ensure()
    home.clusters.write_text("no folder")
    first, second = StillRunning(RecordStore(home), ["lab"]).lines()
    assert first == f"what is still running is unknown: cannot read {home.clusters}: Not a directory"
    assert "CLOUDGPU_HOME" in second


def test_unreadable_record_and_missing_price_are_reported_as_unknown(records):
    still = StillRunning(records)
    records.save_cluster(changed(CLUSTER, node_hourly_usd="0", state="making", nodes=0, instance_type=""), NOW)
    assert still.lines()[0].startswith("cluster lab may be partly created: 0 x unknown type, price unknown")
    Home(records._home.root).cluster("lab").record.write_text("{")
    assert "has a record that cannot be read" in still.lines()[0]


def test_possibly_existing_storage_is_listed_with_its_delete_command(records):
    storages = StorageRecords(records._home)
    assert storage_lines(storages, "data") == [NOTHING_RUNNING]
    record = StorageRecord("data", "efs", "t", "ann", "", "aws", "1", "", "us-west-2", NOW, disposable=False)
    storages.save(record)
    assert storage_lines(storages, "data") == [
        "storage data may be partly created in us-west-2: it costs money until it is deleted",
        "    delete it: cloudgpu storage delete data",
    ]
    storages.save(replace(record, target="rehearsal"), state="ready")
    assert storage_lines(storages, "data")[0] == "storage data exists in us-west-2: simulated, nothing is charged"
    storages.save(record, state="deleting")
    assert "may still exist" in storage_lines(storages, "data")[0]


def test_interrupted_sweep_lists_clusters_being_deleted():
    one = ClusterResources(
        "lab\x1b[2J", "t", "ann", "", "", NOW, NOW, (), None, None, (), billed_in=("eu-west-1", "us-west-2")
    )
    again = "cloudgpu sweep --yes --owner bob"
    assert swept_clusters_lines([], again) == [NOTHING_RUNNING]
    assert swept_clusters_lines([one], again) == [
        "cluster lab\ufffd[2J may still exist in eu-west-1, us-west-2",
        "    delete them: cloudgpu sweep --yes --owner bob",
    ]


def test_signal_while_a_finished_command_closes_its_resources_prints_no_traceback(capsys):
    main.open_resources.callback(lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert main.main(["--version"]) == 143
    assert "interrupted" in capsys.readouterr().err
