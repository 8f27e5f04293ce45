"""`down` of several clusters: which are selected, and how individual failures are reported."""

import threading
from dataclasses import replace

import pytest

from cloudgpu.app.cluster_deletion import ClusterSelection, delete_clusters, select_clusters
from cloudgpu.backends.billing.cost_ledger import LenientLedger
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, LedgerError, TeardownError, UsageError
from cloudgpu.run.progress import Note
from cloudgpu.state.run_records import RunRecord
from tests.cluster_records import changed


@pytest.fixture
def three(workspace, make):
    """Three clusters, the last of which belongs to bob."""
    for name in ("one", "two", "three"):
        workspace.owner = "bob" if name == "three" else "ann"
        workspace.provisioning.create(make.plan(make.candidate()), name)
        workspace.clock.sleep(1)  # clusters are listed by age
    workspace.owner = "ann"
    return workspace


def end(workspace, *names):
    return delete_clusters(names, lambda _: workspace.context, "us-east-1", workspace.heard.append)


def choose(workspace, *names, every=False, run_id="", owner=None):
    return select_clusters(workspace.records, names, every=every, run_id=run_id, owner=owner)


def test_several_clusters_are_deleted_and_their_rows_closed(three):
    result = end(three, "one", "two")
    assert [deletion.cluster for deletion in result.ended] == ["one", "two"]
    assert result.failed == result.left == ()
    assert [record.name for record in three.records.clusters()] == ["three"]
    assert len(three.ledger.entries(state="open")) == 1


def test_clusters_are_deleted_concurrently(three):
    """The barrier is passed only if both deletions run at the same time."""
    both = threading.Barrier(2, timeout=20)
    seen = []

    def search(cluster, regions):
        if cluster not in seen:
            seen.append(cluster)
            both.wait()
        return []

    three.cloud.search = search
    assert len(end(three, "one", "two").ended) == 2


def test_failed_deletion_does_not_stop_others_and_error_lists_reasons(three):
    ended = threading.Event()

    def context_of(name):
        if name == "one":
            raise AuthError("the token has expired")
        if name == "two":
            raise TeardownError("left", left=["volume vol-1 in us-east-1", "key-pair k in us-east-1"])
        ended.set()
        return replace(three.context, owner="bob")

    result = delete_clusters(["one", "two", "three"], context_of, "us-east-1", three.heard.append)
    assert ended.is_set()
    assert [deletion.cluster for deletion in result.ended] == ["three"]
    err = result.error()
    assert (err.exit_code, err.message) == (6, "2 of 3 clusters are not confirmed deleted: one, two")
    assert err.left == (
        "one: the token has expired",
        "two: volume vol-1 in us-east-1",
        "two: key-pair k in us-east-1",
    )
    assert err.hint == "continue with `cloudgpu down one two`"


def test_each_cluster_is_deleted_under_its_own_lease(three):
    with ClusterLease(three.home.cluster("one").root / "lease", three.clock, "ann").hold():
        result = end(three, "one", "two")
    assert [deletion.cluster for deletion in result.ended] == ["two"]
    ((name, err),) = result.failed
    assert name == "one"
    assert isinstance(err, BusyError)


def test_unexpected_exception_propagates_from_delete_clusters(three):
    def context_of(name):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        delete_clusters(["one"], context_of, "us-east-1", three.heard.append)


def test_notes_name_the_cluster_they_concern(three, make):
    three.cloud.orphans = [make.thing("volume", "vol-1", "us-east-1", {"cloudgpu:owner": "ann"})]
    end(three, "one")
    assert any(text.startswith("one: found by tag") for text in three.notes)
    assert all(isinstance(what, Note) for what in three.heard if hasattr(what, "text"))


def test_select_clusters_resolves_names_all_and_owner(three):
    assert choose(three, "two", "one", "two") == ClusterSelection(("two", "one"), asked=True)
    assert choose(three, every=True) == ClusterSelection(("one", "two", "three"), asked=False)
    assert choose(three, owner="ann") == ClusterSelection(("one", "two"), asked=False)
    assert choose(three, owner="eve") == ClusterSelection((), asked=False)


def test_cluster_with_damaged_record_is_selected_for_any_owner(three):
    three.home.cluster("two").record.write_text("{")
    assert set(choose(three, owner="ann").names) == {"one", "two"}


@pytest.mark.parametrize("own", [True, False])
def test_run_option_asks_before_deleting_only_its_own_cluster(three, own):
    cluster = three.records.cluster("two")
    three.records.save_cluster(changed(cluster, run_id="r-1" if own else ""), three.clock.now())
    run = RunRecord(
        run_id="r-1", cluster="two", recipe="q", recipe_path="", owner="ann", team="", target="rehearsal",
        started_at=three.clock.now(),
    )  # fmt: skip
    three.records.save_run(run)
    assert choose(three, run_id="r-1") == ClusterSelection(("two",), asked=own)
    with pytest.raises(UsageError, match="run r-2 does not exist"):
        choose(three, run_id="r-2")


@pytest.mark.parametrize("more", [{"every": True}, {"run_id": "r-1"}, {"owner": "ann"}])
def test_conflicting_selectors_are_rejected(three, more):
    with pytest.raises(UsageError, match="--all, --mine and --run"):
        choose(three, "one", **more)


def test_deleted_but_unrecorded_clusters_are_not_reported_as_left(workspace, make):
    for name in ("one", "two"):
        workspace.provisioning.create(make.plan(make.candidate()), name)

    def damaged():
        raise LedgerError("the ledger is damaged", hint="restore a copy")

    context = replace(workspace.context, ledger=LenientLedger(damaged))
    result = delete_clusters(("one", "two"), lambda _name: context, "us-east-1", workspace.heard.append)
    assert (result.failed, result.left) == ((), ())
    assert [name for name, _ in result.unrecorded] == ["one", "two"]
    error = result.error()
    assert isinstance(error, LedgerError)
    assert "cluster one is deleted" in error.message
    assert "cluster two is deleted" in error.message
    assert "`cloudgpu down one two` again" in error.hint
