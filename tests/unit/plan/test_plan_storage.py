"""Storage in a plan: the zones that it leaves, what it costs, and what is refused."""

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


def test_other_zones_are_left_out_and_the_plan_says_why():
    assert len({one.zone for one in plan().candidates}) > 1
    made = plan(SETS, seen={"sets": (SEEN,)})
    assert {one.zone for one in made.candidates} == {"us-east-1d"}
    assert told(made, "storage-zone") == [
        ("note", "storage sets is in us-east-1d: other zones are excluded"),
    ]


def test_what_stands_in_every_zone_leaves_all_of_them():
    made = plan(SETS, seen={"sets": (replace(SEEN, kind="efs", zone=""),)})
    assert {one.zone for one in made.candidates} == {one.zone for one in plan().candidates}


def test_a_region_without_it_is_left_out():
    made = plan(SETS, seen={"sets": (replace(SEEN, region="us-west-2", zone="us-west-2b"),)})
    assert made.candidates == ()
    assert ("error", "storage sets is in us-west-2, not in us-east-1") in told(made)


@pytest.mark.parametrize(
    ("seen", "nodes", "severity", "words"),
    [
        ({"sets": ()}, 1, "error", "storage sets does not exist in us-east-1"),
        ({}, 1, "unknown", "was not queried"),
        ({"sets": (replace(SEEN, ready=False),)}, 1, "error", "is not available"),
        ({"sets": (replace(SEEN, kind="ebs"),)}, 2, "error", "which only one node can mount, but there are 2"),
        ({"sets": (replace(SEEN, kind="ebs", users=("i-1",)),)}, 1, "warning", "is attached to i-1"),
    ],
)
def test_what_a_run_would_fail_by_is_found_before(seen, nodes, severity, words):
    ((found, message),) = told(plan(SETS, seen=seen, nodes=nodes))
    assert found == severity
    assert words in message


def test_what_is_made_is_in_the_worst_case_and_what_stays_is_by_the_month():
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


def test_what_an_earlier_cluster_kept_is_not_made_again():
    kept = {"name": "sets", "to": "/sets", "make": {"kind": "lustre", "size": "1200GiB"}}
    made = plan(kept, seen={"sets": (SEEN,)})
    assert [item for item in made.costs if item.kind == "storage"] == []
    assert {one.zone for one in made.candidates} == {"us-east-1d"}
