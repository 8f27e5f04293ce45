"""Every deletion of a cluster takes the same steps in the same order, and none goes on without its verification."""

from functools import partial

import pytest

from cloudgpu.backends.aws.clusters.tag_search import resource_filter
from cloudgpu.backends.aws.clusters.verified_deletion import VerifiedDeletion
from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.sweep import SweepRequest
from cloudgpu.errors import TeardownError
from cloudgpu.state.record_store import RecordStore
from tests.tagged_resource import Resource
from tests.unit.app.conftest import ScriptedEngine

NOTHING_LEFT = "nothing left"


class NoImages:
    def found(self, region, name=""):
        return []


@pytest.fixture
def resources(workspace):
    """Return the tagged resources of the cluster: a node and its disk."""

    def listed():
        (row,) = workspace.ledger.entries(cluster="demo")
        token = row.spending.entry_id.partition("/")[0]
        tags = {"cloudgpu:cluster": "demo", "cloudgpu:owner": "ann", "cloudgpu:token": token}
        return [Resource("instance", "i-1", tags=tags), Resource("volume", "vol-1", tags=tags)]

    return listed


@pytest.fixture
def steps(workspace, monkeypatch):
    """The steps of the deletion in the order in which they happened."""
    seen = []

    def watch(owner, name, step):
        real = getattr(owner, name)

        def watched(*arguments, **options):
            done = real(*arguments, **options)
            seen.append(step(arguments, done))
            return done

        monkeypatch.setattr(owner, name, watched)

    def released(arguments, _):
        return "nodes" if arguments[0][0].kind == "instance" and len(arguments[0]) == 1 else "resources"

    watch(workspace.cloud, "release", released)
    watch(workspace.cloud, "search", lambda _, found: "found" if found else NOTHING_LEFT)
    watch(ScriptedEngine, "destroy", lambda *_: "journal")
    watch(type(workspace.ledger), "close", lambda *_: "ledger")
    watch(
        VerifiedDeletion,
        "_delete_storage",
        lambda arguments, _: "storage" if arguments[1].with_storage else NOTHING_LEFT,
    )
    watch(RecordStore, "forget_cluster", lambda *_: "record")
    return seen


def order(steps):
    """Return the steps without repetitions, and of the searches only the last before the ledger is closed."""
    verified = [
        step
        for step, following in zip(steps, [*steps[1:], ""], strict=True)
        if step != "found" and (step != NOTHING_LEFT or following == "ledger")
    ]
    return list(dict.fromkeys(verified))


def created(workspace, make, resources, steps):
    workspace.provisioning.create(make.plan(make.candidate()), "demo")
    workspace.cloud.orphans = resources()
    workspace.cloud.anybodys = lambda region: [one for one in workspace.cloud.orphans if one.region == region]
    steps.clear()


def down(workspace, make, resources, steps):
    created(workspace, make, resources, steps)
    return partial(workspace.teardown.down, "demo", "us-east-1")


def down_without_record(workspace, make, resources, steps):
    created(workspace, make, resources, steps)
    workspace.home.cluster("demo").record.unlink()
    return partial(workspace.teardown.down, "demo", "us-east-1")


def sweep_without_record(workspace, make, resources, steps):
    down_without_record(workspace, make, resources, steps)
    sweeping = AccountSweep(workspace.context, NoImages(), "us-east-1")
    plan = sweeping.plan((), SweepRequest("ann", all_mine=True))

    def delete():
        for _, err in sweeping.delete_clusters(plan).failed:
            raise err

    return delete


def failed_launch(workspace, make, resources, steps):
    def launched(stack):
        workspace.cloud.orphans = resources()
        steps.clear()

    workspace.cloud.before_up = launched
    workspace.cloud.refusals = {"us-east-1c": RuntimeError("the launch failed")}

    def delete():
        with pytest.raises(RuntimeError, match="the launch failed"):
            workspace.provisioning.create(make.plan(make.candidate()), "demo")

    return delete


AFTER_NODES = ["nodes", "resources", NOTHING_LEFT, "ledger"]
WITH_JOURNAL = ["nodes", "journal", *AFTER_NODES[1:], "storage", "record"]
WAYS = {
    down: WITH_JOURNAL,
    down_without_record: [*AFTER_NODES, "storage", "record"],
    # Storage is deleted after all clusters, and there is no record.
    sweep_without_record: AFTER_NODES,
    failed_launch: WITH_JOURNAL,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_deletion_takes_the_same_steps(workspace, make, resources, steps, way):
    way(workspace, make, resources, steps)()
    assert order(steps) == WAYS[way]
    assert workspace.cloud.orphans == []
    assert workspace.ledger.entries(state="open") == ()


@pytest.mark.parametrize("way", WAYS)
def test_no_deletion_ends_while_a_search_finds_a_resource(workspace, make, resources, steps, way):
    delete = way(workspace, make, resources, steps)

    def release(found, on_wait=None):
        workspace.cloud.orphans = [one for one in workspace.cloud.orphans if one.kind == "volume"]

    workspace.cloud.release = release
    with pytest.raises(TeardownError) as caught:
        delete()
    assert any("volume vol-1 in us-east-1" in line for line in caught.value.left)
    assert {"ledger", "record"}.isdisjoint(steps)
    assert [row.state for row in workspace.ledger.entries()] == ["open"]


@pytest.mark.parametrize(
    ("whose", "token", "deleted"),
    [
        ("token", "t1", {"mine", "ours"}),  # sweep, and after a failed launch
        ("token or owner", "t1", {"mine", "ours", "mine-before", "untagged", "no-token"}),  # down
        ("token or owner", "", {"mine", "mine-before", "untagged", "no-token"}),
        ("owner", "", {"mine", "mine-before", "untagged", "no-token"}),  # down without a record
    ],
)
def test_resources_of_another_owner_are_deleted_only_by_their_token(whose, token, deleted):
    found = [
        Resource("instance", "mine", tags={"cloudgpu:owner": "ann", "cloudgpu:token": "t1"}),
        Resource("instance", "ours", tags={"cloudgpu:owner": "bob", "cloudgpu:token": "t1"}),
        Resource("instance", "mine-before", tags={"cloudgpu:owner": "ann", "cloudgpu:token": "t0"}),
        Resource("instance", "theirs", tags={"cloudgpu:owner": "bob", "cloudgpu:token": "t0"}),
        Resource("instance", "untagged", tags={"cloudgpu:token": "t0"}),
        Resource("instance", "no-token", tags={"cloudgpu:owner": "ann"}),
        Resource("instance", "their-no-token", tags={"cloudgpu:owner": "bob"}),
    ]
    assert {resource.id for resource in filter(resource_filter(whose, token, "ann"), found)} == deleted
