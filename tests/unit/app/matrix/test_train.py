"""`train --matrix` on a scripted cloud: one cluster, every combination, and nothing lost whatever breaks it off."""

import csv
import io
from dataclasses import dataclass, field, replace
from decimal import Decimal

import pytest

from cloudgpu.app.matrix.planner import MatrixPlan, PlannedRun
from cloudgpu.app.matrix.request import MatrixRequest
from cloudgpu.app.matrix.train import MatrixRunner
from cloudgpu.app.planning.planner import Planned
from cloudgpu.app.runs.train import TrainingRun
from cloudgpu.backends.aws.clusters.create import Requester
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import BusyError, ConnectError, StateError, TeardownError, UsageError
from cloudgpu.recipe.digest import digest
from cloudgpu.recipe.matrix import Axis, Combination
from cloudgpu.state.matrix_records import MatrixRecords

AXES = (Axis("way", ("a", "b", "c")), Axis("size", ("1",)))
COMBINATIONS = tuple((("way", way), ("size", "1")) for way in "abc")


class Killed(BaseException):
    """SIGKILL, as far as the code can tell."""


@dataclass
class Bed:
    """A matrix of three on two nodes, typed again and again."""

    workspace: object
    gang: object
    make: object
    folder: object
    base: int = 0
    asked: list = field(default_factory=list)

    def request(self, **more):
        runs = tuple(self.planned(values) for values in COMBINATIONS)
        lead = Planned(runs[0].plan, self.folder / "recipe.yaml", self.folder, None)
        return MatrixRequest(MatrixPlan(lead, AXES, runs), lead.path, lead.base, **more)

    def planned(self, values):
        params = {**dict(values), "base": self.base}
        plan = self.make.plan(self.make.candidate(), params=params)
        plan = replace(plan, recipe_digest=digest(plan.recipe))
        return PlannedRun(Combination(values, plan.recipe), plan)

    @property
    def matrices(self):
        requester = Requester(self.workspace.owner, "vision", "ssh-ed25519 AAAA", {})
        training = TrainingRun(self.workspace.context, requester)
        return MatrixRunner(self.workspace.context, training, requester)

    def run(self, **more):
        return self.matrices.run(self.request(**more))

    @property
    def record(self):
        (record,) = MatrixRecords(self.workspace.home).all()[0]
        return record

    @property
    def bought(self):
        return [call for call in self.workspace.cloud.calls if call[0] == "up"]

    def on_run(self, place, happens):
        """Let something happen when the run of this place, from 1, is started."""
        started = []

        def start():
            started.append(1)
            if len(started) == place:
                happens()

        self.gang.before["start"] = start

    def ask(self, answer):
        def end(what):
            self.asked.append(what)
            return answer

        return end


@pytest.fixture
def bed(workspace, gang, make, tmp_path):
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)")
    return Bed(workspace, gang, make, folder)


def states(outcome):
    return [row.state for row in outcome.rows]


def fail_on(bed, *places):
    """Runs of these places fail, the others succeed."""
    started = []

    def start():
        started.append(1)
        if len(started) in places:
            bed.gang.tell("failed", ("accuracy=0.1",), rank=0, exit_code=3, reason="exit code 3")
        else:
            bed.gang.tell("succeeded", (f"accuracy=0.9{len(started)}",))

    bed.gang.before["start"] = start


def test_every_combination_runs_in_one_cluster_that_is_ended(bed):
    fail_on(bed)
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert [row.measured[0].value for row in outcome.rows] == [0.91, 0.92, 0.93]
    assert [sorted(row.best) for row in outcome.rows] == [[], [], ["accuracy"]]
    assert len(bed.bought) == 1
    assert bed.workspace.records.clusters() == []
    assert (outcome.left, outcome.kept, outcome.stopped, outcome.unended) == ((), "", "", "")
    assert outcome.complete
    ledger = {run.run_id: (run.state, run.cluster) for run in bed.workspace.ledger.runs()}
    assert ledger == {row.run_id: ("succeeded", bed.record.cluster) for row in outcome.rows}


def test_the_table_is_in_the_home(bed):
    bed.run()
    rows = list(csv.DictReader(io.StringIO(bed.workspace.home.matrix(bed.record.name).table.read_text())))
    assert [(row["way"], row["size"], row["state"], row["accuracy"]) for row in rows] == [
        (*dict(values).values(), "succeeded", "0.97") for values in COMBINATIONS
    ]
    assert {row["simulated"] for row in rows} == {"true"}


def test_the_bill_is_the_clusters(bed):
    bed.gang.before["follow"] = lambda: bed.workspace.clock.sleep(600)
    outcome = bed.run()
    bill = bed.workspace.ledger.report(by="cluster", now=bed.workspace.clock.now())
    assert outcome.usd == sum(row.usd for row in bill.rows)
    assert Decimal(0) < sum(row.usd for row in outcome.rows) <= outcome.usd


def test_one_that_fails_does_not_stop_the_others_and_alone_is_run_again(bed):
    fail_on(bed, 2)
    outcome = bed.run()
    assert states(outcome) == ["succeeded", "failed", "succeeded"]
    assert outcome.rows[1].reason == "exit code 3"
    assert bed.workspace.records.clusters() == []
    fail_on(bed)
    again = bed.run()
    assert states(again) == ["succeeded"] * 3
    kept = [(one.run_id, two.run_id) for one, two in zip(outcome.rows, again.rows, strict=True)]
    assert [one == two for one, two in kept] == [True, False, True]
    assert len(bed.bought) == 2
    assert set(again.record.spent) == {token for token in again.record.spent if len(token) == 32}
    assert len(again.record.spent) == 2


def test_with_fail_fast_no_other_begins(bed):
    fail_on(bed, 2)
    outcome = bed.run(fail_fast=True)
    assert states(outcome) == ["succeeded", "failed", "waiting"]
    assert "--fail-fast" in outcome.stopped
    assert bed.workspace.records.clusters() == []


def test_a_combination_that_cannot_be_started_is_a_failed_one(bed):
    def full():
        raise ConnectError("the disk is full")

    bed.on_run(2, full)
    outcome = bed.run()
    assert states(outcome) == ["succeeded", "failed", "succeeded"]
    assert outcome.rows[1].reason == "the disk is full"
    assert bed.workspace.records.clusters() == []


def test_a_run_that_may_go_on_holds_its_gpus_so_nothing_is_started_beside_it(bed):
    def cut():
        raise ConnectError("lost the connection")

    bed.on_run(2, lambda: bed.gang.before.update(follow=cut))
    with pytest.raises(ConnectError) as caught:
        bed.run()
    assert "run the same command again to continue" in caught.value.hint
    assert f"cloudgpu down {bed.record.cluster}" in caught.value.hint
    assert [row["state"] for row in caught.value.partial_result["combinations"]] == [
        "succeeded", "running", "waiting",
    ]  # fmt: skip
    going = bed.record.rows[1].run_id
    assert bed.workspace.records.run(going).state == "running"
    bed.gang.before.clear()
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[1].run_id == going
    assert f"run {going} is already in progress; following it" in bed.workspace.notes
    assert len(bed.bought) == 1
    assert bed.workspace.records.clusters() == []


@pytest.mark.parametrize("place", [1, 3])
def test_whoever_is_killed_before_the_ranks_types_it_again(bed, place):
    def die():
        raise Killed

    bed.on_run(place, die)
    # Killed with the ranks written down and not started: nobody can know, so the run is followed to its end.
    with pytest.raises(Killed):
        bed.run()
    begun = bed.record.rows[place - 1].run_id
    assert bed.workspace.records.run(begun).ranks
    bed.gang.before.clear()
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[place - 1].run_id == begun
    assert len(bed.bought) == 1
    assert bed.workspace.records.clusters() == []


def test_a_run_that_was_killed_before_it_had_ranks_is_closed_and_run_again(bed, monkeypatch):
    def die(self, inventory):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("cloudgpu.app.runs.follow.FollowedRun.connect", die)
        with pytest.raises(Killed):
            bed.run()
    begun = bed.record.rows[0].run_id
    assert bed.workspace.records.run(begun).state == "preparing"
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.rows[0].run_id != begun
    assert bed.workspace.records.run(begun).state == "interrupted"
    assert {run.run_id: run.ended_at is not None for run in bed.workspace.ledger.runs()}[begun]


def test_whoever_is_killed_while_nodes_are_bought_goes_on_with_that_cluster(bed):
    def die(stack):
        raise Killed

    bed.workspace.cloud.before_up = die
    with pytest.raises(Killed):
        bed.run()
    half = bed.workspace.records.cluster(bed.record.cluster)
    assert (half.state, bed.record.made) == ("making", True)
    bed.workspace.cloud.before_up = lambda stack: None
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert outcome.record.token == half.token
    assert bed.workspace.records.clusters() == []


@pytest.mark.parametrize("end", [True, False])
def test_ctrl_c_is_asked_about_once(bed, end):
    def interrupt():
        raise KeyboardInterrupt

    bed.on_run(2, lambda: bed.gang.before.update(follow=interrupt))

    def answer(what):
        bed.asked.append(what)
        bed.gang.before.clear()
        return end

    outcome = bed.run(delete_on_interrupt=answer)
    assert outcome.interrupted
    assert len(bed.asked) == 1
    if end:
        assert states(outcome) == ["succeeded", "cancelled", "waiting"]
        assert bed.workspace.records.clusters() == []
    else:
        assert states(outcome) == ["succeeded", "running", "waiting"]
        assert outcome.left
        assert bed.workspace.records.cluster(bed.record.cluster).state == "up"
    bed.gang.tell("succeeded", ("accuracy=0.97",))
    assert states(bed.run()) == ["succeeded"] * 3
    assert bed.workspace.records.clusters() == []


def test_a_cluster_that_expires_is_followed_by_another(bed):
    bed.on_run(2, lambda: bed.gang.before.update(follow=lambda: bed.workspace.clock.sleep(4000)))
    outcome = bed.run()
    assert outcome.stopped.endswith("has expired")
    assert states(outcome)[2:] == ["waiting"]
    assert bed.workspace.records.clusters() == []
    bed.gang.before.clear()
    assert states(bed.run()) == ["succeeded"] * 3
    assert len(bed.bought) == 2


def test_too_little_time_is_told_of(bed):
    bed.gang.before["follow"] = lambda: bed.workspace.clock.sleep(1600)
    bed.run()
    (told,) = [note for note in bed.workspace.notes if "min left" in note]
    assert "has 7 min left, but the longest run so far took 27 min; extend it with `cloudgpu extend" in told


def test_somebody_elses_cluster_is_used_and_left(bed, make):
    bed.workspace.provisioning.up(make.plan(make.candidate()), "lab")
    outcome = bed.run(cluster="lab")
    assert states(outcome) == ["succeeded"] * 3
    assert bed.workspace.records.cluster("lab").state == "up"
    assert len(bed.bought) == 1
    assert outcome.usd == sum(row.usd for row in outcome.rows)
    assert {run.cluster for run in bed.workspace.records.runs()} == {"lab"}


def test_the_cluster_called_like_the_recipe_is_used_as_train_does(bed, make):
    bed.workspace.provisioning.up(make.plan(make.candidate()), "quickstart")
    bed.run()
    assert bed.workspace.records.cluster("quickstart").state == "up"
    assert len(bed.bought) == 1


def test_its_own_cluster_stays_when_asked(bed):
    outcome = bed.run(keep=True)
    assert outcome.kept == "--keep"
    assert f"`cloudgpu down {bed.record.cluster}`" in outcome.left[0]
    assert bed.workspace.records.cluster(bed.record.cluster).state == "up"
    # With nothing to run, the same command without --keep ends it.
    assert bed.run().left == ()
    assert bed.workspace.records.clusters() == []


def test_another_cluster_is_refused_while_its_own_is_up(bed):
    bed.run(keep=True)
    with pytest.raises(UsageError, match="has cluster quickstart-"):
        bed.run(cluster="other", again=True)


def test_failed_runs_keep_it_when_asked(bed):
    fail_on(bed, 3)
    assert bed.run(keep_on_failure=True).kept == "--keep-on-failure"
    bed.gang.before.clear()
    bed.gang.tell("succeeded", ("accuracy=0.97",))
    assert bed.run(keep_on_failure=True).kept == ""
    assert len(bed.bought) == 1


def test_a_changed_recipe_is_named_and_run_again(bed):
    first = bed.run()
    bed.base = 1
    begun = bed.matrices.start_progress(bed.request())
    assert [run.combination.values for run in begun.changed] == list(COMBINATIONS)
    again = bed.run()
    assert {row.run_id for row in first.rows}.isdisjoint(row.run_id for row in again.rows)


def test_again_runs_what_has_a_result(bed):
    first = bed.run()
    assert bed.run().rows == first.rows
    again = bed.run(again=True)
    assert {row.run_id for row in first.rows}.isdisjoint(row.run_id for row in again.rows)
    assert len(again.record.spent) == 2


def test_a_lost_node_ends_it_with_what_is_left_to_do(bed):
    bed.on_run(2, lambda: bed.workspace.cloud.alive.update({"i-us-east-1c-0": "terminated"}))
    with pytest.raises(StateError, match="is incomplete"):
        bed.run()
    bed.gang.before.clear()
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert len(bed.bought) == 2
    assert bed.workspace.records.clusters() == []


def test_a_teardown_that_fails_loses_no_result(bed):
    bed.workspace.cloud.destroy_fails = TeardownError("2 resources are left", left=["volume v-1"])
    outcome = bed.run()
    assert states(outcome) == ["succeeded"] * 3
    assert (outcome.unended, outcome.left) == ("2 resources are left", ("volume v-1",))
    bed.workspace.cloud.destroy_fails = None
    assert bed.run().unended == ""
    assert bed.workspace.records.clusters() == []


def test_two_processes_are_not_at_one_matrix(bed):
    bed.run()
    with (
        ClusterLease(bed.workspace.home.matrix(bed.record.name).lease, bed.workspace.clock, "bob").hold(),
        pytest.raises(BusyError),
    ):
        bed.run(again=True)


def test_a_damaged_record_is_told_of(bed):
    bed.run()
    bed.workspace.home.matrix(bed.record.name).record.write_text("{")
    with pytest.raises(StateError, match="is damaged"):
        bed.run()
    known, damaged = MatrixRecords(bed.workspace.home).all()
    assert (known, len(damaged)) == ([], 1)
