"""A failing region, service or cluster does not prevent the deletion of the others."""

import json

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

DENIED = {"code": "UnauthorizedOperation", "http": 403, "message": "You are not authorized to perform this operation."}
HOME_REGION = "us-west-2"
OTHER = "us-east-1"
TWO_REGIONS = f"{{instance_type: p3dn.24xlarge, nodes: 2, regions: [{HOME_REGION}, {OTHER}]}}"


def denied(**match):
    return {**DENIED, "match": match}


@pytest.fixture
def moved(workspace):
    """Create a cluster whose first region has no capacity, so its nodes are in the second."""
    workspace.recipe(resources=TWO_REGIONS)
    client.put_capacity(workspace.cloud, {f"{HOME_REGION}*/*/*": 0})
    workspace.run("up", "plain", "--yes")
    assert {node.zone[:-1] for node in client.nodes(workspace.cloud)} == {OTHER}
    return workspace


def open_rows(workspace):
    return [row for row in workspace.json("cost")["rows"] if row["open_entries"]]


def test_down_deletes_nodes_although_another_region_denies_access(moved):
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    done = moved.run("down", "plain", "--json", code=6)
    assert not client.nodes(moved.cloud)
    error = json.loads(done.stdout)["error"]
    assert error["type"] == "TeardownError"
    assert [line.partition(":")[0] for line in error["details"]] == [HOME_REGION]
    assert "UnauthorizedOperation" in error["details"][0]
    assert error["hint"].endswith("run `cloudgpu down plain` again")
    # The nodes are confirmed gone, so they cost nothing any more; the cluster itself is not confirmed gone.
    assert open_rows(moved) == []
    assert [row["state"] for row in moved.json("status")["clusters"]] == ["ending"]

    client.put_faults(moved.cloud, [])
    moved.run("down", "plain")
    assert moved.left() == {}
    assert moved.json("status")["clusters"] == []


def test_down_terminates_recorded_nodes_without_search_permission(moved):
    """Their IDs are on record, so no search is needed to terminate them."""
    searches = [{**DENIED, "action": action} for action in ("DescribeVpcs", "ListRoles", "ListScheduleGroups")]
    client.put_faults(moved.cloud, searches)
    moved.home.cluster("plain").journal(OTHER).unlink()
    moved.run("down", "plain", code=6)
    assert not client.nodes(moved.cloud)
    client.put_faults(moved.cloud, [])
    moved.run("down", "plain")
    assert moved.left() == {}


def test_down_without_a_record_deletes_nodes_in_available_regions(moved):
    moved.home.cluster("plain").record.unlink()
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    done = moved.run("down", "plain", "--region", HOME_REGION, code=6)
    assert not client.nodes(moved.cloud)
    assert f"{HOME_REGION}:" in done.stderr
    assert "cloudgpu down plain" in done.stderr
    client.put_faults(moved.cloud, [])
    moved.run("down", "plain", "--region", HOME_REGION)
    assert moved.left() == {}
    assert open_rows(moved) == []


def test_down_reads_identity_elsewhere_if_default_region_fails(moved):
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    done = moved.run("down", "plain", code=6, env={"CLOUDGPU_REGION": HOME_REGION})
    assert f"{HOME_REGION}:" in done.stderr
    assert not client.nodes(moved.cloud)


def test_nonexistent_region_does_not_prevent_node_deletion(moved):
    path = moved.home.cluster("plain").record
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "regions": ["mars-1", *record["regions"]]}))
    client.put_faults(moved.cloud, [{**denied(region="mars-1"), "code": "AuthFailure"}])
    done = moved.run("down", "plain", code=6)
    assert not client.nodes(moved.cloud)
    assert "mars-1" in done.stderr
    assert str(path) in done.stderr


@pytest.mark.parametrize(
    "fault",
    [denied(region=HOME_REGION), {**DENIED, "service": "iam"}, {**DENIED, "service": "scheduler"}],
    ids=["region", "iam", "scheduler"],
)
def test_sweep_deletes_nodes_despite_a_failing_region_or_service(moved, fault):
    moved.home.cluster("plain").record.unlink()
    client.put_faults(moved.cloud, [fault])
    failed = moved.run("sweep", "--yes", code=6)
    assert "and the deletion: cloudgpu sweep --yes" in failed.stderr
    assert not client.nodes(moved.cloud)
    client.put_faults(moved.cloud, [])
    moved.run("sweep", "--yes")
    assert moved.left() == {}
    assert open_rows(moved) == []


def test_sweep_deletes_nodes_although_the_default_region_fails(moved):
    moved.home.cluster("plain").record.unlink()
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    moved.run("sweep", "--yes", code=6, env={"CLOUDGPU_REGION": HOME_REGION})
    assert not client.nodes(moved.cloud)


def test_sweep_of_named_regions_needs_no_region_list(moved):
    client.put_faults(moved.cloud, [{**DENIED, "action": "DescribeRegions"}])
    assert moved.json("sweep", "--region", OTHER)["regions"] == [OTHER]
