"""`train`: after any interruption the run state is correct, and leftovers are deleted or reported."""

import fcntl
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from cloudgpu.app.runs.nodes import RunNodes
from cloudgpu.errors import (
    CapacityError,
    CloudError,
    ConnectError,
    NoCapacityError,
    RecipeError,
    RemoteCommandError,
    TeardownError,
)
from cloudgpu.run import dataset_staging
from tests.fake_host import ScriptedResult


def last_run(workspace):
    return workspace.records.runs()[-1]


def ledger_runs(workspace):
    return {run.run_id: (run.state, run.ended_at is not None) for run in workspace.ledger.runs()}


def test_successful_run_deletes_its_cluster_and_closes_the_ledger(workspace, training):
    outcome = training()
    assert outcome.record.state == "succeeded"
    assert [metric.value for metric in outcome.measured] == [0.97]
    assert outcome.left == ()
    assert workspace.records.clusters() == []
    assert ledger_runs(workspace) == {outcome.record.run_id: ("succeeded", True)}
    assert not workspace.home.cluster(outcome.record.cluster).root.exists()


def test_failed_candidates_are_listed_in_the_outcome(workspace, make, training):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    outcome = training(make.candidate("us-east-1c"), make.candidate("us-east-1d"))
    assert outcome.as_json()["tried"] == [
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity): none"
    ]  # fmt: skip


def test_failed_teardown_does_not_lose_the_run_result(workspace, training):
    workspace.cloud.destroy_fails = TeardownError("2 resources are left", left=["instance i-1", "volume v-1"])
    outcome = training()
    assert outcome.record.state == "succeeded"
    assert outcome.measured[0].value == 0.97
    assert outcome.unended == "2 resources are left"
    assert outcome.left == ("instance i-1", "volume v-1")
    assert last_run(workspace).ended_at is not None


def test_run_cost_equals_the_ledger_report(workspace, gang, training):
    gang.before["follow"] = lambda: workspace.clock.sleep(1800)
    outcome = training(keep=True)
    bill = workspace.ledger.report(by="run", now=workspace.clock.now())
    (row,) = [row for row in bill.rows if row.key == outcome.record.run_id]
    assert outcome.usd == row.usd > Decimal(31)


def test_lost_connection_leaves_the_run_in_progress(workspace, gang, training, watching):
    def cut():
        raise ConnectError("lost the connection")

    gang.before["follow"] = cut
    with pytest.raises(ConnectError) as caught:
        training()
    record = last_run(workspace)
    assert (record.state, record.ended_at) == ("running", None)
    assert f"cloudgpu attach {record.run_id}" in caught.value.hint
    assert f"cloudgpu down {record.cluster}" in caught.value.hint
    assert workspace.records.cluster(record.cluster).state == "up"
    gang.before.clear()
    outcome = watching.attach(record.run_id)
    assert outcome.record.state == "succeeded"
    assert workspace.records.clusters() == []


def test_run_that_cannot_start_deletes_its_cluster(workspace, gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError):
        training()
    assert last_run(workspace).state == "failed"
    assert last_run(workspace).ranks == {}
    assert workspace.records.clusters() == []
    assert set(ledger_runs(workspace).values()) == {("failed", True)}


def test_ranks_are_recorded_before_they_start(workspace, gang, training, watching):
    class Killed(BaseException):
        pass

    def die():
        raise Killed

    gang.before["start"] = die
    with pytest.raises(Killed):
        training()
    record = last_run(workspace)
    assert record.ranks == {"0": (0, 1), "1": (2, 3)}
    gang.before.clear()
    assert watching.attach(record.run_id).record.state == "succeeded"


def test_error_and_failed_teardown_are_reported_together(workspace, gang, training):
    def broken():
        workspace.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
        raise ConnectError("node 0 hung up")

    gang.before["start"] = broken
    with pytest.raises(TeardownError, match=r"node 0 hung up; and the cleanup failed: .* us-east-1") as caught:
        training()
    assert isinstance(caught.value.__cause__, ConnectError)
    assert caught.value.left == ("us-east-1: cannot reach ec2.us-east-1",)
    assert last_run(workspace).ended_at is not None


def test_invalid_command_launches_nothing(workspace, training):
    with pytest.raises(RecipeError, match="MASTER_PORT"):
        training(sections={"environment": {"env": {"MASTER_PORT": "1"}}})
    assert workspace.cloud.calls == []
    assert set(ledger_runs(workspace).values()) == {("failed", True)}


def test_nonexistent_dataset_launches_nothing(workspace, training):
    with pytest.raises(RecipeError, match="digits"):
        training(sections={"data": [{"name": "digits", "from": "nowhere", "to": "/data/digits"}]})
    assert workspace.cloud.calls == []


def test_missing_capacity_fails_the_run_and_leaves_no_cluster(workspace, training):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    with pytest.raises(NoCapacityError):
        training()
    assert set(ledger_runs(workspace).values()) == {("failed", True)}
    assert workspace.records.clusters() == []


def test_error_includes_the_partial_run_summary(workspace, gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError) as caught:
        training(keep_on_failure=True)
    summary = caught.value.partial_result
    assert summary["run_id"] == last_run(workspace).run_id
    assert (summary["state"], summary["reason"]) == ("failed", "the disk is full")
    assert [stage["name"] for stage in summary["stages"]][:2] == ["check data", "provision"]
    assert "is running until" in summary["left"][0]
    gang.before.clear()
    assert set(summary) == set(training().as_json())


def test_error_summary_shows_nothing_left_after_cluster_deletion(gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError) as caught:
        training()
    assert caught.value.partial_result["left"] == []
    assert caught.value.partial_result["stages"][-1]["name"] == "down"


def test_node_without_bootstrap_is_not_used(workspace, gang, training):
    usual = gang._host

    def bare(node):
        return usual(node).on(" probe$", ScriptedResult(stdout='{"bootstrap": "none", "disk_free_mib": 9999}\n'))

    gang._host = bare
    with pytest.raises(Exception, match="not started after 2 min"):
        training()
    assert workspace.records.clusters() == []


def test_failed_bootstrap_leaves_console_and_bootstrap_log_in_the_folder_of_the_run(workspace, gang, training):
    usual = gang._host
    facts = json.dumps({"bootstrap": "failed", "bootstrap_step": "driver", "bootstrap_error": "no package"})
    log = "== driver\nE: Unable to locate package \x1b[31mnvidia\n"

    def failing(node):
        host = usual(node)
        if node.index == 1:
            host.on(" probe$", ScriptedResult(stdout=f"{facts}\n"))
            host.on(r"tail -c .*bootstrap\.log", ScriptedResult(stdout=log))
        return host

    gang._host = failing
    with pytest.raises(RemoteCommandError, match="failed at step driver") as caught:
        training()
    (run,) = workspace.records.runs()
    folder = workspace.home.run(run.run_id).root / "nodes"
    assert sorted(path.name for path in folder.iterdir()) == ["node-1-bootstrap.log", "node-1-console.log"]
    assert (folder / "node-1-bootstrap.log").read_text() == log.replace("\x1b", "\ufffd")
    assert (folder / "node-1-console.log").read_text().startswith("console of i-")
    for path in folder.iterdir():
        assert str(path) in caught.value.hint
    assert workspace.records.clusters() == []


def test_node_without_host_key_leaves_its_console_in_the_folder_of_the_run(workspace, training):
    def keyless(*_):
        err = CloudError("after 10 min, no host key on the console: i-1", hint="cloudgpu down x")
        err.nodes = (1,)
        raise err

    workspace.cloud.inventory = keyless
    with pytest.raises(CloudError) as caught:
        training()
    (run,) = workspace.records.runs()
    saved = workspace.home.run(run.run_id).root / "nodes" / "node-1-console.log"
    assert saved.read_text().startswith("console of i-")
    assert f"read {saved}; cloudgpu down x" in caught.value.hint


class TestInterrupts:
    """Ctrl-C in each stage of a run."""

    @staticmethod
    def ctrl_c():
        raise KeyboardInterrupt

    def test_ctrl_c_while_provisioning_interrupts_run_and_names_cluster(self, workspace, training):
        workspace.cloud.before_up = lambda stack: self.ctrl_c()
        outcome = training()
        assert outcome.interrupted
        assert (outcome.record.state, outcome.record.ended_at is not None) == ("interrupted", True)
        assert outcome.left
        assert "cloudgpu down" in outcome.left[0]
        assert "may be incomplete; its nodes terminate themselves at" in outcome.left[0]
        assert workspace.records.cluster(outcome.record.cluster).state == "making"

    def test_ctrl_c_while_provisioning_can_delete_the_cluster(self, workspace, training):
        workspace.cloud.before_up = lambda stack: self.ctrl_c()
        outcome = training(delete_on_interrupt=lambda _: True)
        assert outcome.record.state == "cancelled"
        assert outcome.left == ()
        assert workspace.records.clusters() == []
        assert set(ledger_runs(workspace).values()) == {("cancelled", True)}

    @pytest.mark.parametrize("place", ["provision", "copy", "start", "follow"])
    def test_question_depends_on_whether_anything_runs(self, workspace, gang, training, place):
        asked = []
        if place == "provision":
            workspace.cloud.before_up = lambda stack: self.ctrl_c()
        else:
            gang.before[{"copy": "probe"}.get(place, place)] = self.ctrl_c
        training(
            delete_on_interrupt=lambda _: bool(asked.append("running")),
            delete_unstarted=lambda _: bool(asked.append("unstarted")),
        )
        assert asked == ["running" if place in ("start", "follow") else "unstarted"]

    def test_ctrl_c_while_following_leaves_the_run_in_progress(self, workspace, gang, training, watching):
        gang.before["follow"] = self.ctrl_c
        outcome = training()
        assert outcome.interrupted
        assert (outcome.record.state, outcome.record.ended_at) == ("running", None)
        gang.before.clear()
        assert watching.attach(outcome.record.run_id).record.state == "succeeded"

    def test_ctrl_c_while_starting_leaves_the_run_attachable(self, workspace, gang, training, watching, monkeypatch):
        released = []
        monkeypatch.setattr(dataset_staging, "release_datasets", lambda *_: released.append("datasets"))
        gang.before["start"] = self.ctrl_c
        outcome = training()
        assert outcome.record.state == "running"
        assert released == []  # ranks may run and read them
        gang.before.clear()
        assert watching.attach(outcome.record.run_id).record.state == "succeeded"

    def test_cancelling_on_existing_cluster_stops_only_the_ranks(self, workspace, make, gang, training):
        workspace.provisioning.create(make.plan(make.candidate()), "shared")

        def once():
            gang.before.clear()
            raise KeyboardInterrupt

        gang.before["follow"] = once
        outcome = training(cluster="shared", delete_on_interrupt=lambda _: True)
        assert (outcome.record.state, outcome.record.reason) == ("cancelled", "interrupted")
        assert all(any(" stop" in sent.text for sent in host.sent) for host in gang.hosts.values())
        assert workspace.records.cluster("shared").state == "up"

    def test_ctrl_c_during_teardown_keeps_the_succeeded_state(self, workspace, training):
        workspace.cloud.searched = _Interrupting(workspace.cloud)
        outcome = training(delete_on_interrupt=lambda _: True)
        assert outcome.interrupted
        assert outcome.record.state == "succeeded"
        assert workspace.records.clusters() == []


class _Interrupting(list):
    """Raises Ctrl-C at the first search of a teardown."""

    def __init__(self, cloud):
        super().__init__()
        self.cloud = cloud

    def append(self, event):
        self.cloud.searched = []
        raise KeyboardInterrupt


def test_attach_honors_keep_on_failure_of_train(workspace, gang, training, watching):
    detached = training(detach=True, keep_on_failure=True)
    assert detached.kept == "detached"
    gang.tell("failed", rank=2, exit_code=3, node_index=1, reason="exited with 3")
    outcome = watching.attach(detached.record.run_id)
    assert (outcome.record.state, outcome.kept) == ("failed", "--keep-on-failure")
    assert workspace.records.cluster(detached.record.cluster).state == "up"


def test_cluster_of_another_shape_is_not_reused_by_name(workspace, make, training):
    workspace.provisioning.create(make.plan(make.candidate(), nodes=4), "quickstart")
    outcome = training()
    assert outcome.record.cluster != "quickstart"
    assert outcome.record.state == "succeeded"


def test_expired_cluster_with_recipe_name_does_not_block_a_run(workspace, make, training):
    workspace.provisioning.create(make.plan(make.candidate()), "quickstart")
    workspace.clock.sleep(7200)
    assert training().record.state == "succeeded"


def test_nan_metric_fails_the_run_and_is_null_in_json(gang, training):
    gang.ended = {"lines": ("accuracy=nan",)}
    outcome = training()
    assert outcome.record.state == "failed"
    assert outcome.as_json()["metrics"]["accuracy"]["value"] is None


def test_concurrent_runs_upload_their_work_directories_in_turn(workspace, make, gang, training):
    workspace.provisioning.create(make.plan(make.candidate()), "shared")
    waiting = threading.Event()
    workspace.heard = _Heard(
        lambda event: waiting.set() if "waiting for another run" in getattr(event, "text", "") else None
    )
    path = workspace.home.cluster("shared").root / "sending-quickstart"
    with path.open("ab") as held, ThreadPoolExecutor(1) as second:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = second.submit(training, cluster="shared")
        assert waiting.wait(10)
        assert not any(".cloudgpu/work" in sent.text for host in gang.hosts.values() for sent in host.sent)
        fcntl.flock(held, fcntl.LOCK_UN)
        assert outcome.result(30).record.state == "succeeded"


class _Heard(list):
    def __init__(self, on_event):
        super().__init__()
        self.on_event = on_event

    def append(self, event):
        super().append(event)
        self.on_event(event)


def test_hint_after_failed_gate_does_not_name_deleted_cluster(workspace, training, monkeypatch):
    def failing(_nodes):
        hint = "read bootstrap.log; delete the cluster with `cloudgpu down`, then run `cloudgpu train` again"
        raise RemoteCommandError("node 0 is not ready: no GPU", hint=hint)

    monkeypatch.setattr(RunNodes, "gate", failing)
    with pytest.raises(RemoteCommandError) as caught:
        training()
    (run,) = workspace.records.runs()
    assert workspace.records.clusters() == []
    assert caught.value.hint == (
        f"read bootstrap.log; cluster {run.run_id} was deleted; to look at the nodes after a failure, "
        "add --keep-on-failure"
    )
    with pytest.raises(RemoteCommandError) as caught:
        training(keep_on_failure=True)
    (kept,) = workspace.records.clusters()
    assert f"cloudgpu down {kept.name}" in caught.value.hint
    assert "is deleted" not in caught.value.hint
