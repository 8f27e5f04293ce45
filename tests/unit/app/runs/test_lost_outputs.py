"""Expected outputs that were never downloaded: every command that closes such a run reports them and fails."""

from dataclasses import replace
from datetime import timedelta

import pytest

from cloudgpu.app.runs.outcome import lost_output_lines
from cloudgpu.cli.render.run import exit_code
from cloudgpu.errors import ConnectError, RemoteCommandError, StateError, UsageError
from cloudgpu.ssh.transfer.listing import SkippedDownload
from cloudgpu.state.record_store import RecordStore

OUTPUTS = {"outputs": ["outputs/metrics.json"]}


def end_nodes(workspace):
    workspace.cloud.alive = dict.fromkeys(workspace.cloud.alive, "terminated")


@pytest.fixture
def unfetched(workspace, gang, training, watching):
    """A succeeded run whose outputs are still on its nodes."""
    run = training(detach=True, sections=OUTPUTS).record
    watching.logs(run.run_id)
    return run


def test_attach_after_expiry_reports_lost_outputs(workspace, watching, unfetched):
    end_nodes(workspace)
    workspace.clock.sleep(2 * 3600)
    outcome = watching.attach(unfetched.run_id)
    assert outcome.record.state == "succeeded"
    (line,) = outcome.lost
    assert line.startswith(
        f"no outputs of run {unfetched.run_id} (outputs/metrics.json) were downloaded: its cluster exp"
    )
    assert outcome.as_json()["lost"] == [line]
    assert line in workspace.notes
    assert exit_code(outcome) == RemoteCommandError.exit_code


def test_attach_after_down_reports_lost_outputs(workspace, watching, unfetched):
    workspace.teardown.down(unfetched.cluster, "us-east-1")
    with pytest.raises(RemoteCommandError, match=r"no outputs of run .* were downloaded: its cluster was deleted"):
        watching.attach(unfetched.run_id)


def test_attach_after_down_to_collected_run_is_a_usage_error(workspace, gang, training, watching):
    run = training(sections=OUTPUTS).record
    with pytest.raises(UsageError, match="is not running: succeeded"):
        watching.attach(run.run_id)
    assert workspace.records.run(run.run_id).collected


def test_run_without_outputs_loses_none(workspace, training, watching):
    run = training(detach=True).record
    watching.logs(run.run_id)
    end_nodes(workspace)
    outcome = watching.attach(run.run_id)
    assert outcome.lost == ()
    assert exit_code(outcome) == 0


@pytest.mark.parametrize("collected", [None, False, True])
def test_record_of_a_run_without_outputs_names_none_as_lost(workspace, training, watching, collected):
    run = training(detach=True).record
    record = replace(run, collected=collected)
    assert record.uncollected == ()
    assert lost_output_lines(record, "its cluster was deleted") == ()
    watching.logs(run.run_id)
    workspace.teardown.down(run.cluster, "us-east-1")
    with pytest.raises(UsageError, match="is not running: succeeded"):
        watching.attach(run.run_id)


def test_run_record_of_earlier_version_reports_no_lost_outputs(workspace, unfetched):
    record = workspace.records.run(unfetched.run_id)
    assert record.uncollected == ("outputs/metrics.json",)
    assert replace(record, outputs=("outputs/metrics.json",)).uncollected == ()
    assert replace(record, outputs=("outputs/metrics.json",), collected=False).uncollected != ()


def test_terminated_node_loses_its_outputs(workspace, watching, unfetched):
    second = next(instance_id for instance_id in workspace.cloud.alive if instance_id.endswith("-1"))
    workspace.cloud.alive[second] = "terminated"
    outcome = watching.attach(unfetched.run_id)
    assert outcome.lost == (f"node 1 ({second}) is terminated and its data is lost",)
    assert exit_code(outcome) == RemoteCommandError.exit_code
    assert workspace.records.run(unfetched.run_id).collected is False


def test_outputs_unfetchable_during_deletion_are_reported_lost(workspace, gang, training, monkeypatch):
    def down_then_fail(*_args, **_options):
        workspace.records.forget_cluster(workspace.records.runs()[-1].cluster)
        raise RemoteCommandError("the disk is gone")

    def planned():
        for host in gang.hosts.values():
            monkeypatch.setattr(host, "fetch_tree", down_then_fail)

    gang.before["follow"] = planned
    outcome = training(sections=OUTPUTS)
    assert outcome.unfetched == ()
    assert "node 0: the disk is gone" in outcome.lost
    assert exit_code(outcome) == RemoteCommandError.exit_code


def test_unreadable_output_keeps_cluster_and_skipped_ones_are_in_json(workspace, gang, training, watching):
    def plant():
        gang.hosts["i-us-east-1c-0"].skipped = [
            SkippedDownload("outputs/pipe", "named pipe", lost=False),
            SkippedDownload("outputs/secret", "cannot be read: Permission denied", lost=True),
        ]

    gang.before["follow"] = plant
    outcome = training(sections=OUTPUTS)
    assert [row["path"] for row in outcome.as_json()["outputs"]["skipped"]] == ["outputs/pipe", "outputs/secret"]
    assert outcome.unfetched == ("node 0: outputs/secret: cannot be read: Permission denied",)
    assert exit_code(outcome) == RemoteCommandError.exit_code
    gang.before.clear()
    gang.hosts["i-us-east-1c-0"].skipped = []
    assert workspace.records.cluster(outcome.record.cluster).lifecycle.expires_at > workspace.clock.now() + timedelta(
        minutes=1
    )
    assert exit_code(watching.attach(outcome.record.run_id)) == 0


def unasked(workspace, monkeypatch, error):
    def nodes_alive(self, region, instance_ids):
        raise error

    monkeypatch.setattr(type(workspace.cloud), "instance_states", nodes_alive)


def test_failed_run_outputs_are_fetched_despite_unreachable_nodes(workspace, gang, training, watching, monkeypatch):
    """On self-managed hosts, a query needs an SSH connection to each node."""
    gang.tell("failed", reason="because")
    gang.before["follow"] = lambda: unasked(workspace, monkeypatch, ConnectError("blue does not answer"))
    outcome = training(sections=OUTPUTS)
    assert (outcome.record.state, outcome.record.collected) == ("failed", True)


@pytest.mark.parametrize("verb", ["attach", "logs", "cancel"])
def test_unreachable_node_error_says_that_run_may_still_be_running(workspace, training, watching, monkeypatch, verb):
    run = training(detach=True).record
    unasked(workspace, monkeypatch, ConnectError("blue does not answer", hint="plug it in"))
    with pytest.raises(ConnectError, match="blue does not answer") as caught:
        getattr(watching, verb)(run.run_id)
    add_live_run_hint = f"run {run.run_id} may still be running; attach to it with `cloudgpu attach {run.run_id}`"
    assert caught.value.hint.startswith(f"plug it in; {add_live_run_hint}")


@pytest.mark.parametrize("state", ["succeeded", "failed"])
def test_full_disk_error_still_reports_the_final_run_state(workspace, gang, training, monkeypatch, state):
    gang.tell(state)
    save = RecordStore.save_run

    def full(self, record):
        if record.judged:
            raise StateError("no space left on the disk")
        return save(self, record)

    monkeypatch.setattr(RecordStore, "save_run", full)
    with pytest.raises(StateError, match="no space left") as caught:
        training(sections=OUTPUTS)
    assert f" has finished ({state}); attach to it with `cloudgpu attach " in caught.value.hint
