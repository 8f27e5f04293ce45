"""`down` of several: the right ones, all of them whatever happens to one, and each reason told."""

import threading
from dataclasses import replace

import pytest

from cloudgpu.app.clusters.delete_many import ClusterSelection, delete_clusters, select_clusters
from cloudgpu.backends.billing.lenient_ledger import LenientLedger
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, LedgerError, TeardownError, UsageError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_and_run_records import RunRecord


@pytest.fixture
def three(workspace, make):
    """Three clusters; the last one is bob's."""
    for name in ("one", "two", "three"):
        workspace.owner = "bob" if name == "three" else "ann"
        workspace.provisioning.up(make.plan(make.candidate()), name)
        workspace.clock.sleep(1)  # clusters are listed by age
    workspace.owner = "ann"
    return workspace


def end(workspace, *names):
    return delete_clusters(names, lambda _: workspace.context, "us-east-1", workspace.heard.append)


def choose(workspace, *names, every=False, run_id="", owner=None):
    return select_clusters(workspace.records, names, every=every, run_id=run_id, owner=owner)


def test_several_end_at_once_each_with_its_bill(three):
    came_to = end(three, "one", "two")
    assert [one.cluster for one in came_to.ended] == ["one", "two"]
    assert came_to.failed == came_to.left == ()
    assert [record.name for record in three.records.clusters()] == ["three"]
    assert len(three.ledger.entries(state="open")) == 1


def test_they_really_end_at_the_same_time(three):
    """Neither could pass if the other one had to be over first."""
    both = threading.Barrier(2, timeout=20)
    seen = []

    def search(cluster, regions):
        if cluster not in seen:
            seen.append(cluster)
            both.wait()
        return []

    three.cloud.search = search
    assert len(end(three, "one", "two").ended) == 2


def test_one_that_fails_does_not_stop_the_others_and_each_reason_is_told(three):
    ended = threading.Event()

    def context_of(name):
        if name == "one":
            raise AuthError("the token has expired")
        if name == "two":
            raise TeardownError("left", left=["volume vol-1 in us-east-1", "key-pair k in us-east-1"])
        ended.set()
        return replace(three.context, owner="bob")

    came_to = delete_clusters(["one", "two", "three"], context_of, "us-east-1", three.heard.append)
    assert ended.is_set()
    assert [one.cluster for one in came_to.ended] == ["three"]
    err = came_to.error()
    assert (err.exit_code, err.message) == (6, "2 of 3 clusters are not confirmed deleted: one, two")
    assert err.left == (
        "one: the token has expired",
        "two: volume vol-1 in us-east-1",
        "two: key-pair k in us-east-1",
    )
    assert err.hint == "continue with `cloudgpu down one two`"


def test_each_has_a_lease_of_its_own(three):
    with ClusterLease(three.home.cluster("one").root / "lease", three.clock, "ann").hold():
        came_to = end(three, "one", "two")
    assert [one.cluster for one in came_to.ended] == ["two"]
    ((name, err),) = came_to.failed
    assert name == "one"
    assert isinstance(err, BusyError)


def test_a_bug_is_no_outcome(three):
    def context_of(name):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        delete_clusters(["one"], context_of, "us-east-1", three.heard.append)


def test_notes_say_which_cluster_they_are_about(three, make):
    three.cloud.orphans = [make.thing("volume", "vol-1", "us-east-1", {"cloudgpu:owner": "ann"})]
    end(three, "one")
    assert any(text.startswith("one: found by tag") for text in three.notes)
    assert all(isinstance(what, Note) for what in three.heard if hasattr(what, "text"))


def test_which_ones_are_meant(three):
    assert choose(three, "two", "one", "two") == ClusterSelection(("two", "one"), asked=True)
    assert choose(three, every=True) == ClusterSelection(("one", "two", "three"), asked=False)
    assert choose(three, owner="ann") == ClusterSelection(("one", "two"), asked=False)
    assert choose(three, owner="eve") == ClusterSelection((), asked=False)


def test_a_damaged_record_is_of_this_home_and_so_is_its_cluster(three):
    three.home.cluster("two").record.write_text("{")
    assert set(choose(three, owner="ann").names) == {"one", "two"}


@pytest.mark.parametrize("own", [True, False])
def test_the_cluster_of_a_run_is_asked_about_where_the_run_only_used_it(three, own):
    cluster = three.records.cluster("two")
    three.records.save_cluster(replace(cluster, run_id="r-1" if own else ""), three.clock.now())
    run = RunRecord(
        run_id="r-1", cluster="two", recipe="q", recipe_path="", owner="ann", team="", target="rehearsal",
        started_at=three.clock.now(),
    )  # fmt: skip
    three.records.save_run(run)
    assert choose(three, run_id="r-1") == ClusterSelection(("two",), asked=own)
    with pytest.raises(UsageError, match="run r-2 does not exist"):
        choose(three, run_id="r-2")


@pytest.mark.parametrize("more", [{"every": True}, {"run_id": "r-1"}, {"owner": "ann"}])
def test_two_ways_at_once_are_refused(three, more):
    with pytest.raises(UsageError, match="--all, --mine and --run"):
        choose(three, "one", **more)


def test_what_was_deleted_and_not_recorded_is_not_called_left(workspace, make):
    for name in ("one", "two"):
        workspace.provisioning.up(make.plan(make.candidate()), name)

    def damaged():
        raise LedgerError("the ledger is damaged", hint="restore a copy")

    context = replace(workspace.context, ledger=LenientLedger(damaged))
    came_to = delete_clusters(("one", "two"), lambda _name: context, "us-east-1", workspace.heard.append)
    assert (came_to.failed, came_to.left) == ((), ())
    assert [name for name, _ in came_to.unrecorded] == ["one", "two"]
    error = came_to.error()
    assert isinstance(error, LedgerError)
    assert "cluster one is deleted" in error.message
    assert "cluster two is deleted" in error.message
    assert "`cloudgpu down one two` again" in error.hint
