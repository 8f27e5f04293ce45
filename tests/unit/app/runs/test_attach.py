"""Attaching to a run whose nodes are running, terminated, or partly terminated."""

from dataclasses import replace

import pytest

from cloudgpu.app.runs.attach import find_run, read_stored_output, require_rank
from cloudgpu.cli.render.run import failure_lines, outcome_rows
from cloudgpu.errors import AuthError, StateError, UsageError
from cloudgpu.run.progress import LogFolder, RankOutput
from tests.manual_clock import ManualClock


def test_attach_after_expiry_closes_the_run_without_connecting(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    workspace.clock.sleep(2 * 3600)
    gang.dialled.clear()
    outcome = watching.attach(run.run_id)
    assert (outcome.record.state, gang.dialled) == ("lost", [])
    assert "2026-11-21 13:00 UTC" in outcome.record.reason
    assert outcome.left == ()
    assert workspace.records.clusters() == []
    assert [run.state for run in workspace.ledger.runs()] == ["lost"]


@pytest.mark.parametrize("stored", [1, 0])
def test_lost_run_claims_a_checkpoint_only_if_one_was_uploaded(workspace, training, watching, stored):
    run = training(detach=True).record
    checkpoint = {"path": "ckpt", "to": "s3://bucket/runs/{run}"}
    workspace.records.save_run(replace(run, resolved={**run.resolved, "checkpoint": checkpoint}))
    url = f"s3://bucket/runs/{run.run_id}"
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    workspace.cloud.stored = {url: stored}
    outcome = watching.attach(run.run_id)
    assert (outcome.record.state, outcome.has_checkpoint) == ("lost", bool(stored))
    advice = dict(outcome_rows(outcome))["continue"]
    assert (f"checkpoints are in {url}; resume with: " in advice) == bool(stored)
    assert (f"no checkpoint was uploaded to {url}; start again with: " in advice) != bool(stored)


def test_attach_continues_with_the_remaining_nodes(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    gang.tell("failed", node_index=1, reason="lost contact with node 1")
    gang.dialled.clear()
    outcome = watching.attach(run.run_id)
    assert gang.dialled == [["i-us-east-1c-0"]]
    assert (outcome.record.state, outcome.record.reason) == ("failed", "lost contact with node 1")
    assert outcome.notes == ("node 1 (i-us-east-1c-1) is terminated and its data is lost",)
    assert outcome.left == ()


def test_attach_follows_the_run_with_expired_credentials_and_deletes_with_new_ones(
    workspace, gang, training, watching, monkeypatch
):
    run = training(detach=True).record
    account, states, waits = workspace.cloud.account, workspace.cloud.instance_states, []

    def expired(*_):
        err = AuthError("credentials expired", hint="aws sso login --profile gpu")
        err.renewable = True
        raise err

    def login(clock, seconds):
        waits.append(seconds)
        workspace.cloud.account, workspace.cloud.instance_states = account, states
        real(clock, seconds)

    real = ManualClock.sleep
    monkeypatch.setattr(ManualClock, "sleep", login)
    workspace.cloud.account = workspace.cloud.instance_states = expired
    gang.dialled.clear()
    outcome = watching.attach(run.run_id)
    assert (outcome.record.state, outcome.left, len(waits)) == ("succeeded", (), 1)
    assert gang.dialled == [["i-us-east-1c-0", "i-us-east-1c-1"]]
    assert workspace.records.clusters() == []
    assert [note for note in workspace.notes if "waiting for new credentials" in note]


@pytest.fixture
def interrupted(workspace, gang, training, make):
    """Train on spot nodes of which node 1 is taken while the run is followed, so that rank 0 fails."""

    def train(**request):
        gang.tell("failed", rank=0, exit_code=1, node_index=0, reason="exit code 1")
        gang.before["follow"] = lambda: workspace.cloud.alive.update({"i-us-east-1c-1": "terminated"})
        return training(make.candidate(market="spot"), **request)

    return train


def test_lost_spot_node_is_the_reason_and_not_the_rank_that_failed_because_of_it(workspace, interrupted):
    outcome = interrupted(sections={"outputs": ["outputs/metrics.json"]})
    record, gone = outcome.record, "node 1 (i-us-east-1c-1) is terminated"
    assert (record.state, record.failed_rank, record.exit_code) == ("lost", 0, 1)
    assert record.reason == f"spot {gone}, most likely a spot interruption: AWS needed the capacity"
    assert [run.state for run in workspace.ledger.runs()] == ["lost"]
    assert failure_lines(outcome)[1].startswith("rank 0 failed when the run lost a node (exit code 1) on node 0")
    lost = f"spot {gone} and its data is lost"
    assert (outcome.lost, outcome.notes.count(lost), workspace.notes.count(lost)) == ((lost,), 1, 1)
    assert [row for row in outcome_rows(outcome) if lost in row[1]] == [("lost", lost)]


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_run_that_failed_before_its_spot_node_was_taken_stays_failed(workspace, gang, training, watching, make, market):
    run = training(make.candidate(market=market), detach=True).record
    gang.tell("failed", rank=0, exit_code=1, node_index=0, reason="exit code 1")
    if market == "spot":
        workspace.cloud.alive["i-us-east-1c-1"] = "terminated"
    else:
        gang.before["follow"] = lambda: workspace.cloud.alive.update({"i-us-east-1c-1": "terminated"})
    record = watching.attach(run.run_id).record
    assert (record.state, record.reason) == ("failed", "exit code 1")


def test_attach_to_finished_run_keeps_its_result_without_nodes(workspace, training, watching):
    run = training(detach=True).record
    watching.logs(run.run_id)
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    assert watching.attach(run.run_id).record.state == "succeeded"


def test_second_attach_reports_that_the_run_is_finished(training, watching):
    run = training(detach=True).record
    watching.attach(run.run_id)
    with pytest.raises(UsageError, match="is not running: succeeded"):
        watching.attach(run.run_id)


def test_logs_without_nodes_suggests_attach_to_close_the_run(workspace, training, watching):
    run = training(detach=True).record
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")
    with pytest.raises(StateError) as caught:
        watching.logs(run.run_id)
    assert f"cloudgpu attach {run.run_id}" in caught.value.hint


def test_cancel_stops_the_run_once_and_keeps_the_cluster(workspace, training, watching):
    run = training(detach=True).record
    cancelled = watching.cancel(run.run_id)
    assert (cancelled.state, cancelled.ended_at) == ("cancelled", workspace.clock.now())
    assert workspace.records.cluster(run.cluster).state == "up"
    with pytest.raises(UsageError, match="is not running: cancelled"):
        watching.cancel(run.run_id)


def test_cancel_uses_checkpoint_signal_and_grace_period(gang, training, watching):
    checkpoint = {"path": "ckpt", "signal": "SIGUSR1", "grace": "90s"}
    run = training(detach=True, sections={"checkpoint": checkpoint}).record
    watching.cancel(run.run_id)
    (stop,) = [sent for sent in gang.hosts["i-us-east-1c-0"].sent if " stop" in sent.text]
    assert b'"SIGUSR1"' in stop.stdin
    assert b'"grace_s": 90' in stop.stdin


def test_attach_from_new_address_opens_ssh_first(workspace, gang, training, watching):
    run = training(detach=True).record
    workspace.cloud.cidr = "198.51.100.7/32"
    watching.attach(run.run_id)
    assert any("opening port 22 to 198.51.100.7/32" in note for note in workspace.notes)


def test_run_is_found_only_by_its_exact_id(workspace, training):
    run = training().record
    assert find_run(workspace.records, "") == find_run(workspace.records, run.run_id)
    for name in ("../runs/" + run.run_id, "nothing"):
        with pytest.raises(UsageError, match="does not exist"):
            find_run(workspace.records, name)


def test_without_a_name_the_newest_running_run_is_meant_then_the_newest(workspace, training):
    running = training(detach=True).record
    workspace.clock.sleep(60)
    newer = training(detach=True).record
    workspace.clock.sleep(60)
    newest = training().record
    assert find_run(workspace.records, "").run_id == newer.run_id
    workspace.records.save_run(replace(newer, state="cancelled", ended_at=workspace.clock.now()))
    assert find_run(workspace.records, "").run_id == running.run_id
    workspace.records.save_run(replace(running, state="lost", ended_at=workspace.clock.now()))
    assert find_run(workspace.records, "").run_id == newest.run_id


def test_cancel_stores_the_rest_of_the_output_without_showing_it(workspace, gang, training, watching):
    gang.uncopied = ("epoch=1", "epoch=2")
    run = training(detach=True).record
    watching.cancel(run.run_id)
    assert list(read_stored_output(workspace.home, run, 0)) == [RankOutput(0, ("epoch=1", "epoch=2"))]
    assert [event for event in workspace.heard if isinstance(event, RankOutput)] == []
    assert any("keeps running until" in note for note in workspace.notes)


def test_attach_continues_the_progress_log_of_the_run(workspace, gang, training, watching):
    run_id = training(detach=True).record.run_id
    workspace.heard.clear()
    watching.attach(run_id)
    assert workspace.heard[0] == LogFolder(workspace.home.run(run_id).root)


def test_attach_reports_the_times_of_the_run_not_of_the_command(workspace, gang, training, watching):
    """The run took 25 minutes, was detached meanwhile, and had ended an hour before `attach`."""
    gang.ranks = [
        {"started_utc": "2026-11-21T12:00:05Z", "ended_utc": "2026-11-21T12:25:00Z"},
        {"started_utc": "2026-11-21T12:00:00Z", "ended_utc": "2026-11-21T12:24:00Z"},
    ]
    detached = training(detach=True).record
    before = [name for name, _ in detached.stages]
    assert before == ["check data", "provision", "connect", "gate", "stage", "start"]
    workspace.clock.sleep(1800)
    outcome = watching.attach(detached.run_id)
    assert [name for name, _ in outcome.record.stages] == [*before, "train", "collect", "down"]
    assert dict(outcome.record.stages)["train"] == 1500.0
    assert outcome.seconds >= 1500


@pytest.mark.parametrize(
    "ranks",
    [
        [{"started_utc": None, "ended_utc": None}],
        [{"started_utc": "2026-11-21T12:00:05Z", "ended_utc": "2025-11-21T12:25:00Z"}],
        [{"started_utc": "2026-11-21T12:00:05Z", "ended_utc": "2029-11-21T12:25:00Z"}],
        [{"started_utc": "2026-11-21T12:00:05Z", "ended_utc": "2026-11-21T12:00:07"}],
        "x",
        [7],
        {},
    ],
    ids=str,
)
def test_impossible_times_of_a_node_are_not_shown(workspace, gang, training, watching, ranks):
    gang.ranks = ranks
    detached = training(detach=True).record
    assert dict(watching.attach(detached.run_id).record.stages)["train"] == 0.0


def test_stages_are_recorded_when_the_ranks_start(workspace, gang, training):
    """`attach` continues with them if the process that started the run was killed."""
    seen = []
    gang.before["follow"] = lambda: seen.append(workspace.records.runs()[-1].stages)
    training()
    assert [name for name, _ in seen[0]] == ["check data", "provision", "connect", "gate", "stage", "start"]


def test_stored_lines_are_read_per_rank(workspace, training):
    run = training().record
    assert list(read_stored_output(workspace.home, run, 0)) == [RankOutput(0, ("accuracy=0.97",))]
    assert list(read_stored_output(workspace.home, run, 0, tail=0)) == []
    with pytest.raises(UsageError, match="its ranks are 0 to 3"):
        require_rank(run, 4)
