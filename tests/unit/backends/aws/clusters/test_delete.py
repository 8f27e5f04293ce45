"""`down` succeeds only when a tag search is empty, and rejects another account or endpoint."""

from datetime import timedelta
from decimal import Decimal

import pytest

from cloudgpu.errors import CloudError, StateError, TeardownError


def create_cluster(workspace, make):
    return workspace.provisioning.up(make.plan(make.candidate()), "demo").record


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
    with pytest.raises(CloudError):
        workspace.teardown.down("demo", "us-east-1")
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
