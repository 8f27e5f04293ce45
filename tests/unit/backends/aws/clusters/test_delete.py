"""`down` succeeds only when a tag search is empty, and rejects another account or endpoint."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import CloudError, StateError, TeardownError
from cloudgpu.run.progress import Activity


def create_cluster(workspace, make):
    return workspace.provisioning.create(make.plan(make.candidate()), "demo").record


def test_down_deletes_cluster_closes_ledger_and_removes_record(workspace, make):
    create_cluster(workspace, make)
    workspace.clock.sleep(1800)
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.instances == ("i-us-east-1c-0", "i-us-east-1c-1")
    assert ended.usd == Decimal("31.212")
    assert ended.simulated
    assert workspace.records.clusters() == []
    assert workspace.ledger.entries(state="open") == ()


def test_down_of_unknown_cluster_is_reported_as_unknown(workspace):
    ended = workspace.teardown.down("demo", "us-east-1")
    assert not ended.known
    assert ended.orphans == ()


def test_down_of_unknown_cluster_names_other_targets_with_its_name(workspace, make):
    create_cluster(workspace, make)
    workspace.home.cluster("demo").record.unlink()
    workspace.cloud.target = "aws"
    ended = workspace.teardown.down("demo", "us-west-2")
    assert (ended.target, ended.searched, ended.other_targets) == ("aws", ("us-west-2",), ("rehearsal",))


def test_down_deletes_unrecorded_resources_by_tag(workspace, make):
    workspace.cloud.orphans = [make.thing("instance", "i-stray", "us-east-1")]
    ended = workspace.teardown.down("demo", "us-east-1")
    assert ended.orphans == ("instance i-stray",)
    assert ("release", "", ("i-stray",)) in workspace.cloud.calls


def test_down_fails_until_the_tag_search_is_empty(workspace, make):
    create_cluster(workspace, make)
    workspace.cloud.stubborn = [make.thing("volume", "vol-1", "us-east-1")]
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("volume vol-1 in us-east-1",)
    assert workspace.records.cluster("demo").state == "ending"
    assert len(workspace.ledger.entries(state="open")) == 1
    workspace.cloud.stubborn = []
    assert workspace.teardown.down("demo", "us-east-1").known


def test_unreachable_cloud_does_not_count_as_deleted(workspace, make):
    create_cluster(workspace, make)
    workspace.cloud.destroy_fails = CloudError("cannot reach ec2.us-east-1")
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.left == ("us-east-1: cannot reach ec2.us-east-1",)
    assert workspace.records.cluster("demo") is not None
    assert len(workspace.ledger.entries(state="open")) == 1


@pytest.mark.parametrize("change", ["account_id", "endpoint"])
def test_down_with_another_account_or_endpoint_is_an_error(workspace, make, change):
    create_cluster(workspace, make)
    setattr(workspace.cloud, change, "other")
    with pytest.raises(StateError, match="was created in"):
        workspace.teardown.down("demo", "us-east-1")
    assert workspace.records.cluster("demo") is not None


def test_node_running_past_its_expiry_is_billed_until_now(workspace, make):
    create_cluster(workspace, make)
    workspace.clock.sleep(timedelta(hours=3).total_seconds())
    assert workspace.teardown.down("demo", "us-east-1").usd == 2 * Decimal("31.212") * 3


def slow_shutdown(workspace, make, *, states):
    """Create a cluster whose nodes are in these states while `down` waits for them, until its limit has passed."""
    record = workspace.provisioning.create(make.plan(make.candidate()), "demo").record
    ids = record.placement.instance_ids
    workspace.clock.sleep(3600)
    ended_at = workspace.clock.now()
    tags = {"cloudgpu:cluster": "demo", "cloudgpu:token": record.identity.token, "cloudgpu:owner": "ann"}
    workspace.cloud.orphans = [make.thing("instance", node, "us-east-1", tags) for node in ids]

    def release(found, on_wait):
        for node, state in zip(ids, states, strict=True):
            workspace.cloud.alive[node] = state
            workspace.cloud.ends[node] = ended_at
        for _ in range(720):
            workspace.clock.sleep(5)
            on_wait(0.0)
        raise TeardownError("timed out after 3600 s waiting for 2 instances to terminate", left=ids)

    workspace.cloud.release = release
    return record, ended_at


def test_nodes_that_shut_down_for_an_hour_are_not_billed_and_end_the_wait(workspace, make):
    record, ended_at = slow_shutdown(workspace, make, states=("shutting-down", "shutting-down"))
    workspace.cloud.calls.clear()
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert caught.value.exit_code == 6
    assert "2 nodes in us-east-1 are still shutting down and no longer billed" in caught.value.message
    assert "cloudgpu down demo" in caught.value.hint
    assert [line.split()[1] for line in caught.value.left] == list(record.placement.instance_ids)
    assert not [call for call in workspace.cloud.calls if call[0] == "destroy"], "it waits for the nodes again"
    (note,) = [text for text in workspace.notes if "no longer billed" in text]
    assert note.startswith("2 nodes in us-east-1 are shutting down and no longer billed")
    (entry,) = workspace.ledger.entries()
    assert (entry.state, entry.parts["nodes"].at, entry.parts["nodes"].estimated) == ("open", ended_at, False)
    shown = [event for event in workspace.heard if isinstance(event, Activity)]
    assert (shown[0].done, shown[0].total, shown[-1].finished) == (0, 2, True)

    # AWS terminates the instances, and the same command finishes the deletion.
    del workspace.cloud.release
    workspace.cloud.alive = dict.fromkeys(record.placement.instance_ids, "terminated")
    workspace.cloud.orphans = []
    found = workspace.teardown.down("demo", "us-east-1")
    assert found.usd == 2 * Decimal("31.212")
    assert workspace.records.cluster("demo") is None


def test_nodes_that_are_still_billed_are_reported_as_before(workspace, make):
    slow_shutdown(workspace, make, states=("shutting-down", "running"))
    with pytest.raises(TeardownError) as caught:
        workspace.teardown.down("demo", "us-east-1")
    assert "no longer bill" not in f"{caught.value.message} {workspace.notes}"
