"""`train --matrix` on a scripted cloud: one cluster, all combinations, and no lost results after an interruption."""

import csv
import io
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest

from cloudgpu.app.matrix.planner import MatrixPlan, MatrixRequest, PlannedRun
from cloudgpu.app.matrix.train import MatrixRunner
from cloudgpu.app.planning.planner import Planned
from cloudgpu.app.runs.train import TrainingRun, TrainRequest
from cloudgpu.backends.aws.clusters.create import Requester
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import BusyError, ConnectError, StateError, TeardownError, UsageError
from cloudgpu.recipe.matrix import Axis, Combination
from cloudgpu.recipe.schema import digest
from cloudgpu.state.run_records import MatrixRecords

AXES = (Axis("way", ("a", "b", "c")), Axis("size", ("1",)))
COMBINATIONS = tuple((("way", way), ("size", "1")) for way in "abc")


class Killed(BaseException):
    """Stops a command like SIGKILL: no error handler runs."""


@dataclass
class MatrixHarness:
    """A matrix of three combinations on two nodes, run repeatedly."""

    workspace: object
    gang: object
    make: object
    folder: object
    base: int = 0
    prompts: list = field(default_factory=list)

    def request(self, **more):
        runs = tuple(self.planned(values) for values in COMBINATIONS)
        lead = Planned(runs[0].plan, self.folder / "recipe.yaml", self.folder, None)
        matrix = {name: more.pop(name) for name in ("sets", "fail_fast", "again") if name in more}
        return MatrixRequest(
            MatrixPlan(lead, AXES, runs), TrainRequest(lead.plan, lead.path, lead.base, **more), **matrix
        )

    def planned(self, values):
        params = {**dict(values), "base": self.base}
        plan = self.make.plan(self.make.candidate(), params=params)
        plan = replace(plan, recipe_digest=digest(plan.recipe))
        return PlannedRun(Combination(values, plan.recipe), plan)

    @property
    def matrices(self):
        requester = Requester(self.workspace.owner, "vision", "ssh-ed25519 AAAA")
        training = TrainingRun(self.workspace.context, requester)
        return MatrixRunner(self.workspace.context, training, requester)

    def run(self, **more):
        return self.matrices.run(self.request(**more))

    @property
    def record(self):
        (record,) = MatrixRecords(self.workspace.home).all()[0]
        return record

    @property
    def launches(self):
        return [call for call in self.workspace.cloud.calls if call[0] == "up"]

    def on_run(self, place, happens):
        """Call a function when the run at this position, counted from 1, starts."""
        started = []

        def start():
            started.append(1)
            if len(started) == place:
                happens()

        self.gang.before["start"] = start

    def ask(self, answer):
        def end(what):
            self.prompts.append(what)
            return answer

        return end


@pytest.fixture
def harness(workspace, gang, make, tmp_path):
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    return MatrixHarness(workspace, gang, make, folder)


def states(outcome):
    return [row.state for row in outcome.rows]


def fail_on(harness, *places):
    """Let the runs at these positions fail and the others succeed."""
    started = []

    def start():
        started.append(1)
        if len(started) in places:
            harness.gang.tell("failed", ("accuracy=0.1",), rank=0, exit_code=3, reason="exit code 3")
        else:
            harness.gang.tell("succeeded", (f"accuracy=0.9{len(started)}",))

    harness.gang.before["start"] = start


def test_all_combinations_run_in_one_cluster_deleted_afterwards(harness):
    fail_on(harness)
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert [row.measured[0].value for row in outcome.rows] == [0.91, 0.92, 0.93]
    assert [sorted(row.best) for row in outcome.rows] == [[], [], ["accuracy"]]
    assert len(harness.launches) == 1
    assert harness.workspace.records.clusters() == []
    assert (outcome.left, outcome.kept, outcome.stopped, outcome.unended) == ((), "", "", "")
    assert outcome.complete
    ledger = {run.run_id: (run.state, run.cluster) for run in harness.workspace.ledger.runs()}
    assert ledger == {row.run_id: ("succeeded", harness.record.cluster) for row in outcome.rows}


def test_runs_record_their_values_for_the_command_that_repeats_them(harness):
    harness.run(options=("--on", "rehearsal"))
    runs = harness.workspace.context.records.runs()
    expected = [
        ("--on", "rehearsal", *(word for name, value in values for word in ("--set", f"{name}={value}")))
        for values in COMBINATIONS
    ]
    assert sorted(run.options for run in runs) == sorted(expected)


def test_result_table_is_written_to_state_home(harness):
    harness.run()
    rows = list(csv.DictReader(io.StringIO(harness.workspace.home.matrix(harness.record.name).table.read_text())))
    assert [(row["way"], row["size"], row["state"], row["accuracy"]) for row in rows] == [
        (*dict(values).values(), "succeeded", "0.97") for values in COMBINATIONS
    ]
    assert {row["simulated"] for row in rows} == {"true"}


def test_matrix_cost_equals_the_cluster_bill(harness):
    harness.gang.before["follow"] = lambda: harness.workspace.clock.sleep(600)
    outcome = harness.run()
    bill = harness.workspace.ledger.report(by="cluster", now=harness.workspace.clock.now())
    assert outcome.usd == sum(row.usd for row in bill.rows)
    assert Decimal(0) < sum(row.usd for row in outcome.rows) <= outcome.usd


def test_failed_combination_is_retried_without_rerunning_the_others(harness):
    fail_on(harness, 2)
    outcome = harness.run()
    assert states(outcome) == ["succeeded", "failed", "succeeded"]
    assert outcome.rows[1].reason == "exit code 3"
    assert harness.workspace.records.clusters() == []
    fail_on(harness)
    again = harness.run()
    assert states(again) == ["succeeded"] * 3
    kept = [(before.run_id, after.run_id) for before, after in zip(outcome.rows, again.rows, strict=True)]
    assert [before == after for before, after in kept] == [True, False, True]
    assert len(harness.launches) == 2
    assert set(again.record.spent) == {token for token in again.record.spent if len(token) == 32}
    assert len(again.record.spent) == 2


def test_fail_fast_starts_no_further_combinations(harness):
    fail_on(harness, 2)
    outcome = harness.run(fail_fast=True)
    assert states(outcome) == ["succeeded", "failed", "waiting"]
    assert "--fail-fast" in outcome.stopped
    assert harness.workspace.records.clusters() == []


def test_combination_that_cannot_start_is_marked_failed(harness):
    def full():
        raise ConnectError("the disk is full")

    harness.on_run(2, full)
    outcome = harness.run()
    assert states(outcome) == ["succeeded", "failed", "succeeded"]
    assert outcome.rows[1].reason == "the disk is full"
    assert harness.workspace.records.clusters() == []


def test_rerun_after_lost_connection_follows_the_unfinished_run(harness):
    def cut():
        raise ConnectError("lost the connection")

    harness.on_run(2, lambda: harness.gang.before.update(follow=cut))
    with pytest.raises(ConnectError) as caught:
        harness.run()
    assert "run the same command again to continue" in caught.value.hint
    assert f"cloudgpu down {harness.record.cluster}" in caught.value.hint
    assert [row["state"] for row in caught.value.partial_result["combinations"]] == [
        "succeeded", "running", "waiting",
    ]  # fmt: skip
    going = harness.record.rows[1].run_id
    assert harness.workspace.records.run(going).state == "running"
    harness.gang.before.clear()
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[1].run_id == going
    assert f"run {going} is already in progress; following it" in harness.workspace.notes
    assert len(harness.launches) == 1
    assert harness.workspace.records.clusters() == []


@pytest.mark.parametrize("place", [1, 3])
def test_rerun_follows_run_killed_before_its_ranks_started(harness, place):
    def die():
        raise Killed

    harness.on_run(place, die)
    # The ranks were recorded but may not have started, so the run is followed to its end.
    with pytest.raises(Killed):
        harness.run()
    run_id = harness.record.rows[place - 1].run_id
    assert harness.workspace.records.run(run_id).ranks
    harness.gang.before.clear()
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[place - 1].run_id == run_id
    assert len(harness.launches) == 1
    assert harness.workspace.records.clusters() == []


def test_run_killed_before_ranks_were_recorded_is_closed_and_rerun(harness, monkeypatch):
    def die(self, inventory):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("cloudgpu.app.runs.nodes.RunNodes.connect", die)
        with pytest.raises(Killed):
            harness.run()
    run_id = harness.record.rows[0].run_id
    assert harness.workspace.records.run(run_id).state == "preparing"
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[0].run_id != run_id
    assert harness.workspace.records.run(run_id).state == "interrupted"
    assert {run.run_id: run.ended_at is not None for run in harness.workspace.ledger.runs()}[run_id]


def test_rerun_after_kill_during_launch_continues_with_that_cluster(harness):
    def die(stack):
        raise Killed

    harness.workspace.cloud.before_up = die
    with pytest.raises(Killed):
        harness.run()
    half = harness.workspace.records.cluster(harness.record.cluster)
    assert (half.state, harness.record.made) == ("making", True)
    harness.workspace.cloud.before_up = lambda stack: None
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.record.token == half.identity.token
    assert harness.workspace.records.clusters() == []


@pytest.mark.parametrize("end", [True, False])
def test_ctrl_c_prompts_once_about_deleting_the_cluster(harness, end):
    def interrupt():
        raise KeyboardInterrupt

    harness.on_run(2, lambda: harness.gang.before.update(follow=interrupt))

    def answer(what):
        harness.prompts.append(what)
        harness.gang.before.clear()
        return end

    outcome = harness.run(delete_on_interrupt=answer)
    assert outcome.interrupted
    assert len(harness.prompts) == 1
    if end:
        assert states(outcome) == ["succeeded", "cancelled", "waiting"]
        assert harness.workspace.records.clusters() == []
    else:
        assert states(outcome) == ["succeeded", "running", "waiting"]
        assert outcome.left
        assert harness.workspace.records.cluster(harness.record.cluster).state == "up"
    harness.gang.tell("succeeded", ("accuracy=0.97",))
    assert states(harness.run()) == ["succeeded"] * 3
    assert harness.workspace.records.clusters() == []


def test_remaining_combinations_run_in_new_cluster_after_expiry(harness):
    harness.on_run(2, lambda: harness.gang.before.update(follow=lambda: harness.workspace.clock.sleep(4000)))
    outcome = harness.run()
    assert outcome.stopped.endswith("has expired")
    assert states(outcome)[2:] == ["waiting"]
    assert harness.workspace.records.clusters() == []
    harness.gang.before.clear()
    assert states(harness.run()) == ["succeeded"] * 3
    assert len(harness.launches) == 2


def test_cost_is_kept_when_another_process_deletes_the_cluster(harness, monkeypatch):
    """`delete_or_wait` returns None once the other process has deleted the cluster."""

    def delete_elsewhere(context, cluster):
        context.clusters.delete(cluster.name, cluster.placement.region)

    monkeypatch.setattr("cloudgpu.app.matrix.train.delete_or_wait", delete_elsewhere)
    harness.gang.before["follow"] = lambda: harness.workspace.clock.sleep(600)
    outcome = harness.run()
    assert sum(Decimal(usd) for usd in outcome.record.spent.values()) > 0
    assert outcome.usd == harness.workspace.ledger.report(by="user", now=harness.workspace.clock.now()).simulated_usd


def test_too_little_remaining_time_is_reported(harness):
    harness.gang.before["follow"] = lambda: harness.workspace.clock.sleep(1600)
    harness.run()
    (warning,) = [note for note in harness.workspace.notes if "min left" in note]
    assert "has 7 min left, but the longest run so far took 27 min; extend it with `cloudgpu extend" in warning


def test_existing_cluster_named_by_option_is_used_and_kept(harness, make):
    harness.workspace.provisioning.create(make.plan(make.candidate()), "lab")
    outcome = harness.run(cluster="lab")
    assert states(outcome) == ["succeeded"] * 3
    assert harness.workspace.records.cluster("lab").state == "up"
    assert len(harness.launches) == 1
    assert outcome.usd == sum(row.usd for row in outcome.rows)
    assert {run.cluster for run in harness.workspace.records.runs()} == {"lab"}


def test_existing_cluster_with_recipe_name_is_used_and_kept(harness, make):
    harness.workspace.provisioning.create(make.plan(make.candidate()), "quickstart")
    harness.run()
    assert harness.workspace.records.cluster("quickstart").state == "up"
    assert len(harness.launches) == 1


def test_keep_option_leaves_the_matrix_cluster_running(harness):
    outcome = harness.run(keep=True)
    assert outcome.kept == "--keep"
    assert f"`cloudgpu down {harness.record.cluster}`" in outcome.left[0]
    assert harness.workspace.records.cluster(harness.record.cluster).state == "up"
    # With nothing to run, the same command without --keep ends it.
    assert harness.run().left == ()
    assert harness.workspace.records.clusters() == []


def test_another_cluster_is_rejected_while_matrix_cluster_runs(harness):
    harness.run(keep=True)
    with pytest.raises(UsageError, match="has cluster quickstart-"):
        harness.run(cluster="other", again=True)


def test_keep_on_failure_keeps_the_cluster_after_failed_runs(harness):
    fail_on(harness, 3)
    assert harness.run(keep_on_failure=True).kept == "--keep-on-failure"
    harness.gang.before.clear()
    harness.gang.tell("succeeded", ("accuracy=0.97",))
    assert harness.run(keep_on_failure=True).kept == ""
    assert len(harness.launches) == 1


def test_changed_recipe_is_reported_and_combinations_rerun(harness):
    first = harness.run()
    harness.base = 1
    progress = harness.matrices.start_progress(harness.request())
    assert [run.combination.values for run in progress.changed] == list(COMBINATIONS)
    again = harness.run()
    assert {row.run_id for row in first.rows}.isdisjoint(row.run_id for row in again.rows)


def test_again_option_reruns_finished_combinations(harness):
    first = harness.run()
    assert harness.run().rows == first.rows
    again = harness.run(again=True)
    assert {row.run_id for row in first.rows}.isdisjoint(row.run_id for row in again.rows)
    assert len(again.record.spent) == 2


def test_rerun_after_lost_node_completes_the_matrix(harness):
    harness.on_run(2, lambda: harness.workspace.cloud.alive.update({"i-us-east-1c-0": "terminated"}))
    with pytest.raises(StateError, match="is incomplete"):
        harness.run()
    harness.gang.before.clear()
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert len(harness.launches) == 2
    assert harness.workspace.records.clusters() == []


def test_failed_teardown_loses_no_results(harness):
    harness.workspace.cloud.destroy_fails = TeardownError("2 resources are left", left=["volume v-1"])
    outcome = harness.run()
    assert states(outcome) == ["succeeded"] * 3
    assert (outcome.unended, outcome.left) == ("2 resources are left", ("volume v-1",))
    harness.workspace.cloud.destroy_fails = None
    assert harness.run().unended == ""
    assert harness.workspace.records.clusters() == []


def test_second_process_on_same_matrix_raises_busy_error(harness):
    harness.run()
    with (
        ClusterLease(harness.workspace.home.matrix(harness.record.name).lease, harness.workspace.clock, "bob").hold(),
        pytest.raises(BusyError),
    ):
        harness.run(again=True)


def test_damaged_matrix_record_is_reported(harness):
    harness.run()
    harness.workspace.home.matrix(harness.record.name).record.write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        harness.run()
    known, damaged = MatrixRecords(harness.workspace.home).all()
    assert (known, len(damaged)) == ([], 1)
