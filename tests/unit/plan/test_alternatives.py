"""Suggestions for plans whose candidates are all unavailable."""

from datetime import date

import pytest

from cloudgpu.catalog import load
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.substitutes import alternatives
from cloudgpu.recipe.schema import Recipe

CATALOG = load()


def planned(environment=None, **resources):
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p3dn.24xlarge", **resources},
            "environment": environment or {},
            "launch": {"with": "torchrun", "command": "train.py"},
        }
    )
    return planner.plan_with_findings(
        PlannerInput(recipe, "rehearsal", CATALOG, Quotes(), "us-east-1", date(2026, 8, 1))
    )


def suggested(plan, field, bound=frozenset()):
    found = alternatives(plan, CATALOG, bound)
    return [one.removeprefix(f"--set {field}=") for one in found if one.startswith(f"--set {field}=")]


def test_other_market_regions_and_instance_type_are_suggested():
    plan = planned()
    assert suggested(plan, "resources.market") == ["spot"]
    assert suggested(plan, "resources.regions") == ["us-east-1,us-west-2,eu-west-1"]
    assert suggested(plan, "resources.instance_type") == ["p4d.24xlarge"]
    assert suggested(planned(market="spot"), "resources.market") == ["on-demand"]


def test_plan_without_candidates_has_no_alternatives():
    assert alternatives(planned(instance_type="p3.16xlarge"), CATALOG) == ()


def test_suggested_instance_type_supports_the_software():
    caffe2 = {"container": {"image": "nvcr.io/nvidia/caffe2:18.08-py3"}}
    assert suggested(planned(caffe2), "resources.instance_type") == []
    small = planned(caffe2, instance_type="g4dn.xlarge")
    assert {CATALOG.types[name].gpu for name in suggested(small, "resources.instance_type")} == {"T4"}


def test_instance_type_limited_by_same_quota_is_not_suggested():
    plan = planned()
    bound = frozenset({quota_of("p3dn.24xlarge", "on-demand")})
    (other,) = suggested(plan, "resources.instance_type", bound)
    assert quota_of(other, "on-demand") not in bound
    assert CATALOG.types[other].gpu_memory_total_gib >= 256


def test_region_suggestion_clears_pinned_zones():
    plan = planned(zones=["us-east-1c"])
    assert suggested(plan, "resources.regions")[0].endswith(" --set resources.zones=")


@pytest.mark.parametrize("market", ["reservation", "capacity-block"])
def test_switching_to_on_demand_clears_the_reservation(market):
    plan = planned(instance_type="p4d.24xlarge", market=market, reservation="cr-0a1b2c3d4e5f60718")
    assert suggested(plan, "resources.market") == ["on-demand --set resources.reservation="]


def test_already_tried_types_and_regions_are_not_suggested():
    plan = planned(instance_type=None, any_of=["V100:8", "A100:8"], regions=["us-east-1", "us-west-2", "eu-west-1"])
    tried = {one.instance_type for one in plan.candidates}
    assert not tried & set(suggested(plan, "resources.instance_type"))
    (regions,) = suggested(plan, "resources.regions")
    already = list(dict.fromkeys(one.region for one in plan.candidates))
    more = regions.split(",")[len(already) :]
    assert regions.split(",")[: len(already)] == already
    assert more
    assert not set(more) & {"us-east-1", "us-west-2", "eu-west-1"}
