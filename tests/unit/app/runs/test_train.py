"""`train`: whatever breaks it off, the run's state is true, and what is left is ended or named."""

import fcntl
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest

from cloudgpu.errors import CapacityError, CloudError, ConnectError, NoCapacityError, RecipeError, TeardownError
from cloudgpu.ssh.fake import ScriptedResult


def last_run(workspace):
    return workspace.records.runs()[-1]


def ledger_runs(workspace):
    return {run.run_id: (run.state, run.ended_at is not None) for run in workspace.ledger.runs()}


def test_a_run_from_plan_to_bill(workspace, training):
    outcome = training()
    assert outcome.record.state == "succeeded"
    assert [one.value for one in outcome.measured] == [0.97]
    assert outcome.left == ()
    assert workspace.records.clusters() == []
    assert ledger_runs(workspace) == {outcome.record.run_id: ("succeeded", True)}
    assert not workspace.home.cluster(outcome.record.cluster).root.exists()


def test_candidates_that_failed_are_in_the_outcome(workspace, make, training):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    outcome = training(make.candidate("us-east-1c"), make.candidate("us-east-1d"))
    assert outcome.as_json()["tried"] == [
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity): none"
    ]  # fmt: skip


def test_a_teardown_that_fails_does_not_lose_what_the_run_reached(workspace, training):
    workspace.cloud.destroy_fails = TeardownError("2 resources are left", left=["instance i-1", "volume v-1"])
    outcome = training()
    assert outcome.record.state == "succeeded"
    assert outcome.measured[0].value == 0.97
    assert outcome.unended == "2 resources are left"
    assert outcome.left == ("instance i-1", "volume v-1")
    assert last_run(workspace).ended_at is not None


def test_the_cost_is_the_ledgers_own(workspace, gang, training):
    gang.before["follow"] = lambda: workspace.clock.sleep(1800)
    outcome = training(keep=True)
    bill = workspace.ledger.report(by="run", now=workspace.clock.now())
    (row,) = [row for row in bill.rows if row.key == outcome.record.run_id]
    assert outcome.usd == row.usd > Decimal(31)


def test_losing_contact_does_not_end_the_run(workspace, gang, training, watching):
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


def test_a_run_that_could_not_be_started_ends_its_cluster(workspace, gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError):
        training()
    assert last_run(workspace).state == "failed"
    assert last_run(workspace).ranks == {}
    assert workspace.records.clusters() == []
    assert set(ledger_runs(workspace).values()) == {("failed", True)}


def test_the_ranks_are_written_down_before_they_are_started(workspace, gang, training, watching):
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


def test_an_error_and_a_failed_teardown_are_both_told(workspace, gang, training):
    def broken():
        workspace.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
        raise ConnectError("node 0 hung up")

    gang.before["start"] = broken
    with pytest.raises(TeardownError, match=r"node 0 hung up; and .* cannot reach ec2") as caught:
        training()
    assert isinstance(caught.value.__cause__, ConnectError)
    assert caught.value.left
    assert last_run(workspace).ended_at is not None


def test_nothing_is_bought_for_a_command_that_cannot_run(workspace, training):
    with pytest.raises(RecipeError, match="MASTER_PORT"):
        training(sections={"environment": {"env": {"MASTER_PORT": "1"}}})
    assert workspace.cloud.calls == []
    assert set(ledger_runs(workspace).values()) == {("failed", True)}


def test_nothing_is_bought_for_data_that_is_not_there(workspace, training):
    with pytest.raises(RecipeError, match="digits"):
        training(sections={"data": [{"name": "digits", "from": "nowhere", "to": "/data/digits"}]})
    assert workspace.cloud.calls == []


def test_no_capacity_is_a_failed_run_and_no_cluster(workspace, training):
    workspace.cloud.refusals = {"us-east-1c": CapacityError("none", code="InsufficientInstanceCapacity")}
    with pytest.raises(NoCapacityError):
        training()
    assert set(ledger_runs(workspace).values()) == {("failed", True)}
    assert workspace.records.clusters() == []


def test_an_error_tells_what_the_run_had_come_to(workspace, gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError) as caught:
        training(keep_on_failure=True)
    told = caught.value.partial_result
    assert told["run_id"] == last_run(workspace).run_id
    assert (told["state"], told["reason"]) == ("failed", "the disk is full")
    assert [stage["name"] for stage in told["stages"]][:2] == ["check data", "provision"]
    assert "is running until" in told["left"][0]
    gang.before.clear()
    assert set(told) == set(training().as_json())


def test_an_error_whose_cluster_is_ended_tells_that_nothing_is_left(gang, training):
    def full():
        raise ConnectError("the disk is full")

    gang.before["start"] = full
    with pytest.raises(ConnectError) as caught:
        training()
    assert caught.value.partial_result["left"] == []
    assert caught.value.partial_result["stages"][-1]["name"] == "down"


def test_a_node_without_its_bootstrap_is_not_used(workspace, gang, training):
    usual = gang._host

    def bare(node):
        return usual(node).on(" probe$", ScriptedResult(stdout='{"bootstrap": "none", "disk_free_mib": 9999}\n'))

    gang._host = bare
    with pytest.raises(Exception, match="not started after 2 minutes"):
        training()
    assert workspace.records.clusters() == []


class TestInterrupts:
    """Ctrl-C in each stage."""

    @staticmethod
    def ctrl_c():
        raise KeyboardInterrupt

    def test_while_provisioning_the_run_is_over_and_the_cluster_named(self, workspace, training):
        workspace.cloud.before_up = lambda stack: self.ctrl_c()
        outcome = training()
        assert outcome.interrupted
        assert (outcome.record.state, outcome.record.ended_at is not None) == ("interrupted", True)
        assert outcome.left
        assert "cloudgpu down" in outcome.left[0]
        assert "may be incomplete; its nodes terminate themselves at" in outcome.left[0]
        assert workspace.records.cluster(outcome.record.cluster).state == "making"

    def test_while_provisioning_and_ending_it(self, workspace, training):
        workspace.cloud.before_up = lambda stack: self.ctrl_c()
        outcome = training(delete_on_interrupt=lambda _: True)
        assert outcome.record.state == "cancelled"
        assert outcome.left == ()
        assert workspace.records.clusters() == []
        assert set(ledger_runs(workspace).values()) == {("cancelled", True)}

    def test_while_following_the_run_goes_on(self, workspace, gang, training, watching):
        gang.before["follow"] = self.ctrl_c
        outcome = training()
        assert outcome.interrupted
        assert (outcome.record.state, outcome.record.ended_at) == ("running", None)
        gang.before.clear()
        assert watching.attach(outcome.record.run_id).record.state == "succeeded"

    def test_while_starting_the_run_may_go_on(self, workspace, gang, training, watching):
        gang.before["start"] = self.ctrl_c
        outcome = training()
        assert outcome.record.state == "running"
        gang.before.clear()
        assert watching.attach(outcome.record.run_id).record.state == "succeeded"

    def test_ending_a_run_on_somebody_elses_cluster_stops_its_ranks(self, workspace, make, gang, training):
        workspace.provisioning.up(make.plan(make.candidate()), "shared")

        def once():
            gang.before.clear()
            raise KeyboardInterrupt

        gang.before["follow"] = once
        outcome = training(cluster="shared", delete_on_interrupt=lambda _: True)
        assert (outcome.record.state, outcome.record.reason) == ("cancelled", "interrupted")
        assert all(any(" stop" in sent.wire for sent in host.sent) for host in gang.hosts.values())
        assert workspace.records.cluster("shared").state == "up"

    def test_a_verdict_is_not_turned_into_a_cancellation(self, workspace, training):
        workspace.cloud.searched = _Interrupting(workspace.cloud)
        outcome = training(delete_on_interrupt=lambda _: True)
        assert outcome.interrupted
        assert outcome.record.state == "succeeded"
        assert workspace.records.clusters() == []


class _Interrupting(list):
    """Ctrl-C at the first search of a teardown."""

    def __init__(self, cloud):
        super().__init__()
        self.cloud = cloud

    def append(self, one):
        self.cloud.searched = []
        raise KeyboardInterrupt


def test_attach_keeps_what_train_was_told_to_keep(workspace, gang, training, watching):
    detached = training(detach=True, keep_on_failure=True)
    assert detached.kept == "detached"
    gang.tell("failed", rank=2, exit_code=3, node_index=1, reason="exited with 3")
    outcome = watching.attach(detached.record.run_id)
    assert (outcome.record.state, outcome.kept) == ("failed", "--keep-on-failure")
    assert workspace.records.cluster(detached.record.cluster).state == "up"


def test_a_cluster_of_another_shape_is_not_used_by_its_name_alone(workspace, make, training):
    workspace.provisioning.up(make.plan(make.candidate(), nodes=4), "quickstart")
    outcome = training()
    assert outcome.record.cluster != "quickstart"
    assert outcome.record.state == "succeeded"


def test_an_expired_cluster_of_the_recipes_name_does_not_stop_a_run(workspace, make, training):
    workspace.provisioning.up(make.plan(make.candidate()), "quickstart")
    workspace.clock.sleep(7200)
    assert training().record.state == "succeeded"


def test_a_nan_reaches_nothing(gang, training):
    gang.ended = {"lines": ("accuracy=nan",)}
    outcome = training()
    assert outcome.record.state == "failed"
    assert outcome.as_json()["metrics"]["accuracy"]["value"] is None


def test_two_runs_of_a_recipe_send_their_work_directories_one_after_the_other(workspace, make, gang, training):
    workspace.provisioning.up(make.plan(make.candidate()), "shared")
    told = threading.Event()
    workspace.heard = _Heard(lambda one: told.set() if "waiting for another run" in getattr(one, "text", "") else None)
    path = workspace.home.cluster("shared").root / "sending-quickstart"
    with path.open("ab") as held, ThreadPoolExecutor(1) as second:
        fcntl.flock(held, fcntl.LOCK_EX)
        outcome = second.submit(training, cluster="shared")
        assert told.wait(10)
        assert not any(".cloudgpu/work" in sent.wire for host in gang.hosts.values() for sent in host.sent)
        fcntl.flock(held, fcntl.LOCK_UN)
        assert outcome.result(30).record.state == "succeeded"


class _Heard(list):
    def __init__(self, on_event):
        super().__init__()
        self.on_event = on_event

    def append(self, one):
        super().append(one)
        self.on_event(one)
