"""Storage in a plan: zones that it excludes, its cost, and invalid requests."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage_state import StorageSeen
from cloudgpu.recipe.schema import Recipe

SETS = {"name": "sets", "to": "/sets"}
SEEN = StorageSeen("sets", "lustre", "us-east-1", "us-east-1d", True, "ann", (), Decimal(168))


def plan(*storage, seen=None, nodes=1, regions=("us-east-1",)):
    values = {"schema": 1, "name": "r", "launch": {"with": "torchrun", "command": "x.py"}, "storage": list(storage)}
    resources = {"instance_type": "p3dn.24xlarge", "nodes": nodes, "regions": list(regions)}
    recipe = Recipe.model_validate({**values, "resources": resources})
    quotes = Quotes(storage=seen or {})
    return planner.build_plan(
        PlannerInput(
            recipe, target="aws", catalog=load(), quotes=quotes, default_region="us-east-1", today=date(2026, 11, 21)
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
