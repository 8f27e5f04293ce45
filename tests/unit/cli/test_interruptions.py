"""What a first and a second signal do, and what is said to be still running."""

import json
import os
import signal
from dataclasses import replace

import pytest

from cloudgpu.app.clusters.still_running import NOTHING_RUNNING, StillRunning, storage_lines, swept_clusters_lines
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.cli.terminal import signals
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.signals import HANDLED_SIGNALS, Interruptions
from cloudgpu.clock import SystemClock
from cloudgpu.paths import Home
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore, RunRecord
from cloudgpu.state.storage_records import StorageRecord, StorageRecords

NOW = SystemClock().now()
CLUSTER = ClusterRecord("lab", "t", "ann", "", "plain", "aws", "1", "", NOW, NOW, "up", state="up", nodes=2,
                        instance_type="p3.2xlarge", node_hourly_usd="3.06")  # fmt: skip
RUN = RunRecord("plain-abc", "lab", "plain", "", "ann", "", "aws", NOW, state="running", ranks={"0": (0,)})


@pytest.fixture
def records(tmp_path):
    return RecordStore(Home(tmp_path / "home").ensure())


@pytest.fixture
def heard(monkeypatch):
    """Listening for signals; what is written by the second one, and the code that it leaves with."""
    written, left = {1: "", 2: ""}, []
    monkeypatch.setattr(signals, "_write", lambda where, text: written.update({where: written[where] + text}))
    monkeypatch.setattr(os, "_exit", left.append)
    interruptions = Interruptions()
    with interruptions.handle_signals(Screen(json_mode=True)):
        interruptions.tell(lambda: ["cluster lab is running"])
        yield interruptions, written, left


def test_the_first_signal_is_ctrl_c_and_the_second_leaves_at_once(heard):
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
def test_exit_codes(heard, number, code):
    interruptions, _, _ = heard
    assert interruptions.exit_code(130) == 130
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert interruptions.exit_code(130) == code
    assert interruptions.exit_code(6) == 6
    assert interruptions.lines() == ["cluster lab is running"]


def test_records_that_cannot_be_read_do_not_keep_a_command_from_leaving(heard):
    interruptions, written, left = heard
    interruptions.tell(lambda: 1 // 0)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert left == [130]
    assert "what is still running is unknown" in written[2]


def test_what_is_ignored_stays_ignored_and_everything_is_as_before_afterwards():
    before = {one: signal.getsignal(one) for one in HANDLED_SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptions().handle_signals(Screen()):
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, before[signal.SIGHUP])
    assert {one: signal.getsignal(one) for one in HANDLED_SIGNALS} == before


def test_what_runs_is_named_with_its_price_and_the_commands(records):
    records.save_cluster(replace(CLUSTER, name="other"), NOW)
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
    assert still.lines()[0] == "run plain-abc has finished (succeeded); its outputs may not be downloaded yet"


def test_what_is_not_known_is_said_to_be_unknown(records):
    still = StillRunning(records)
    records.save_cluster(replace(CLUSTER, node_hourly_usd="0", state="making", nodes=0, instance_type=""), NOW)
    assert still.lines()[0].startswith("cluster lab may be partly running: 0 x unknown type, price unknown")
    Home(records._home.root).cluster("lab").record.write_text("{")
    assert "has a record that cannot be read" in still.lines()[0]


def test_storage_that_may_exist_is_named_with_the_command_that_deletes_it(records):
    storages = StorageRecords(records._home)
    assert storage_lines(storages, "data") == [NOTHING_RUNNING]
    record = StorageRecord("data", "efs", "t", "ann", "", "aws", "1", "", "us-west-2", NOW, disposable=False)
    storages.save(record)
    assert storage_lines(storages, "data") == [
        "storage data may be partly created in us-west-2: it costs money until it is deleted",
        "    delete it: cloudgpu storage delete data",
    ]
    storages.save(replace(record, target="rehearsal"), state="ready")
    assert storage_lines(storages, "data")[0] == ("storage data is created in us-west-2: simulated, nothing is charged")
    storages.save(record, state="deleting")
    assert "may not be deleted yet" in storage_lines(storages, "data")[0]


def test_an_interrupted_sweep_names_the_clusters_that_it_was_deleting():
    one = ClusterResources(
        "lab\x1b[2J", "t", "ann", "", "", NOW, NOW, (), None, None, (), billed_in=("eu-west-1", "us-west-2")
    )
    assert swept_clusters_lines([]) == [NOTHING_RUNNING]
    assert swept_clusters_lines([one]) == [
        "cluster lab\ufffd[2J may not be deleted yet: eu-west-1, us-west-2",
        "    delete them: cloudgpu sweep --yes",
    ]
