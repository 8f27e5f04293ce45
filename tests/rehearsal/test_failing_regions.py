"""One region, one service or one cluster that fails never keeps the others from being deleted."""

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
    """A cluster whose first region had no capacity: its nodes are in the second one."""
    workspace.recipe(resources=TWO_REGIONS)
    client.put_capacity(workspace.cloud, {f"{HOME_REGION}*/*/*": 0})
    workspace.run("up", "plain", "--yes")
    assert {node.zone[:-1] for node in client.nodes(workspace.cloud)} == {OTHER}
    return workspace


def open_rows(workspace):
    return [row for row in workspace.json("cost")["rows"] if row["open_entries"]]


@pytest.mark.main_path
def test_down_ends_the_nodes_of_a_region_that_answers_while_another_one_denies_everything(moved):
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


def test_down_ends_recorded_nodes_although_no_search_is_permitted(moved):
    """Their ids are on record: nobody needs to find them to end them."""
    searches = [{**DENIED, "action": action} for action in ("DescribeVpcs", "ListRoles", "ListScheduleGroups")]
    client.put_faults(moved.cloud, searches)
    moved.home.cluster("plain").journal(OTHER).unlink()
    moved.run("down", "plain", code=6)
    assert not client.nodes(moved.cloud)
    client.put_faults(moved.cloud, [])
    moved.run("down", "plain")
    assert moved.left() == {}


def test_down_without_a_record_ends_what_it_finds_in_the_regions_that_answer(moved):
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


def test_down_asks_the_identity_elsewhere_when_the_default_region_does_not_answer(moved):
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    done = moved.run("down", "plain", code=6, env={"CLOUDGPU_REGION": HOME_REGION})
    assert f"{HOME_REGION}:" in done.stderr
    assert not client.nodes(moved.cloud)


def test_a_region_that_does_not_exist_keeps_no_node_alive(moved):
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
def test_sweep_ends_the_nodes_that_it_finds_whatever_else_cannot_be_asked(moved, fault):
    moved.home.cluster("plain").record.unlink()
    client.put_faults(moved.cloud, [fault])
    moved.run("sweep", "--yes", code=6)
    assert not client.nodes(moved.cloud)
    client.put_faults(moved.cloud, [])
    moved.run("sweep", "--yes")
    assert moved.left() == {}
    assert open_rows(moved) == []


def test_sweep_finds_the_regions_although_the_default_one_does_not_answer(moved):
    moved.home.cluster("plain").record.unlink()
    client.put_faults(moved.cloud, [denied(region=HOME_REGION)])
    moved.run("sweep", "--yes", code=6, env={"CLOUDGPU_REGION": HOME_REGION})
    assert not client.nodes(moved.cloud)


def test_sweep_of_named_regions_needs_no_list_of_all_regions(moved):
    client.put_faults(moved.cloud, [{**DENIED, "action": "DescribeRegions"}])
    assert moved.json("sweep", "--region", OTHER)["regions"] == [OTHER]
