"""Storage in a plan: zones that it excludes, its cost, and invalid requests."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Quotes, StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen
from cloudgpu.recipe.schema import Recipe

SETS = {"name": "sets", "to": "/sets"}
SEEN = StorageSeen("sets", "lustre", "us-east-1", "us-east-1d", True, "ann", (), Decimal(168))


HOMES = replace(SEEN, name="sets", kind="efs", zone="", mount_zones=("us-east-1c",), vpc_id="vpc-1")
NEW = {"name": "new", "to": "/new", "make": {"kind": "efs"}}
PUBLIC = SubnetSeen("subnet-2", "us-east-1c", size=251, free=251, way_out="public", target="igw-1")
FOUND = RegionNetwork("vpc-1", subnets=(PUBLIC, replace(PUBLIC, id="subnet-1", way_out="nat")))


def plan(*storage, seen=None, nodes=1, regions=("us-east-1",), found=None, **settings):
    values = {"schema": 1, "name": "r", "launch": {"with": "torchrun", "command": "x.py"}, "storage": list(storage)}
    resources = {"instance_type": "p3dn.24xlarge", "nodes": nodes, "regions": list(regions)}
    recipe = Recipe.model_validate({**values, "resources": resources})
    quotes = Quotes(storage=seen or {}, networks={"us-east-1": found} if found else {})
    return planner.build_plan(
        PlannerInput(
            recipe,
            target="aws",
            catalog=load(),
            quotes=quotes,
            default_region="us-east-1",
            today=date(2026, 11, 21),
            network=NetworkRequest(**settings),
        )
    )


def told(made, check="storage"):
    return [(one.severity, one.message) for one in made.findings if one.check == check]


def test_zones_without_the_storage_are_excluded_with_a_note():
    assert len({one.zone for one in plan().candidates}) > 1
    made = plan(SETS, seen={"sets": (SEEN,)})
    assert {one.zone for one in made.candidates} == {"us-east-1d"}
    assert told(made, "storage-zone") == [
        ("note", "storage sets is in us-east-1d: other zones are excluded"),
    ]


def test_multi_zone_storage_excludes_no_zones():
    made = plan(SETS, seen={"sets": (replace(SEEN, kind="efs", zone=""),)})
    assert {one.zone for one in made.candidates} == {one.zone for one in plan().candidates}


def test_region_without_the_storage_is_excluded():
    made = plan(SETS, seen={"sets": (replace(SEEN, region="us-west-2", zone="us-west-2b"),)})
    assert made.candidates == ()
    assert ("error", "storage sets is in us-west-2, not in us-east-1") in told(made)


@pytest.mark.parametrize(
    ("seen", "nodes", "severity", "words"),
    [
        ({"sets": ()}, 1, "error", "storage sets does not exist in us-east-1"),
        ({}, 1, "unknown", "was not queried"),
        ({"sets": (replace(SEEN, ready=False),)}, 1, "error", "is not available"),
        ({"sets": (replace(SEEN, kind="ebs"),)}, 2, "error", "which only one node can mount, but the cluster has 2"),
        ({"sets": (replace(SEEN, kind="ebs", users=("i-1",)),)}, 1, "warning", "is attached to i-1"),
    ],
)
def test_storage_problem_is_reported_before_launch(seen, nodes, severity, words):
    ((found, message),) = told(plan(SETS, seen=seen, nodes=nodes))
    assert found == severity
    assert words in message


def test_worst_case_includes_new_storage_but_not_kept_storage():
    own = {"name": "own", "to": "/own", "make": {"kind": "lustre", "size": "1200GiB"}, "keep": False}
    kept = {"name": "kept", "to": "/kept", "make": {"kind": "ebs", "size": "100GiB"}}
    grows = {"name": "grows", "to": "/grows", "make": {"kind": "efs"}, "keep": False}
    costs = {item.what.split()[1]: item for item in plan(own, kept, grows).costs if item.kind == "storage"}
    assert (costs["own"].per, costs["own"].usd * 720) == ("hour", Decimal(168))
    assert (costs["kept"].per, costs["kept"].usd) == ("month", Decimal(8))
    assert costs["grows"].usd is None
    bare = plan().worst_case_usd
    assert plan(own).worst_case_usd > bare
    assert plan(kept).worst_case_usd == bare


def test_storage_kept_from_an_earlier_cluster_is_reused():
    kept = {"name": "sets", "to": "/sets", "make": {"kind": "lustre", "size": "1200GiB"}}
    made = plan(kept, seen={"sets": (SEEN,)})
    assert [item for item in made.costs if item.kind == "storage"] == []
    assert {one.zone for one in made.candidates} == {"us-east-1d"}


def test_only_zones_with_a_mount_target_are_planned():
    made = plan(SETS, seen={"sets": (HOMES,)})
    assert {one.zone for one in made.candidates} == {"us-east-1c"}
    assert told(made, "storage-zone") == [
        ("note", "storage sets has mount targets in us-east-1c only: other zones are excluded"),
    ]
    everywhere = replace(HOMES, mount_zones=tuple(sorted({one.zone for one in plan().candidates})))
    assert told(plan(SETS, seen={"sets": (everywhere,)}), "storage-zone") == []
    nowhere = plan(SETS, seen={"sets": (replace(HOMES, mount_zones=("us-east-1z",)),)})
    assert told(nowhere) == [("error", "storage sets is in us-east-1z, where p3dn.24xlarge is not offered")]


@pytest.mark.parametrize(
    ("storage", "settings", "reason"),
    [
        (SETS, {"create_vpc": True}, "a VPC that is created with the cluster"),
        (NEW, {"create_vpc": True}, "a VPC that is created with the cluster"),
        (SETS, {"public_address": "nat"}, "the VPC that is created for nodes behind NAT"),
        (NEW, {"public_address": "nat"}, "the VPC that is created for nodes behind NAT"),
        (NEW, {"public_address": "private-nat", "reach": "ssm"}, "the VPC that is created for nodes behind NAT"),
    ],
)
def test_file_system_that_nodes_in_their_own_vpc_cannot_reach_is_a_plan_error(storage, settings, reason):
    made = plan(storage, seen={"sets": (HOMES,)}, **settings)
    assert told(made) == [("error", f"storage {storage['name']} cannot be reached from {reason}")]
    bucket = {**NEW, "make": {"kind": "s3"}}
    assert told(plan(bucket, **settings)) == []


def test_file_system_in_another_vpc_is_a_plan_error():
    assert told(plan(SETS, seen={"sets": (HOMES,)}, found=FOUND)) == []
    elsewhere = {"sets": (replace(HOMES, vpc_id="vpc-2"),)}
    assert told(plan(SETS, seen=elsewhere, found=FOUND)) == [
        ("error", "storage sets is in vpc-2, but the nodes would be in vpc-1"),
    ]


def test_plan_shows_the_mount_targets_of_a_new_file_system():
    notes = told(plan(NEW, found=FOUND), "subnets")
    assert ("note", "storage new gets mount targets in subnet-2 in us-east-1c") in notes
    assert not [
        text for _, text in told(plan(SETS, seen={"sets": (HOMES,)}, found=FOUND), "subnets") if "storage" in text
    ]
