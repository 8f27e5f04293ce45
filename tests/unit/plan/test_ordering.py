"""The order in which candidates are tried, for each value of `prefer`."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.plan import costs, planner
from cloudgpu.plan.candidate_list import SORT_RULES
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import rules
from cloudgpu.recipe.schema import Recipe

CATALOG = load()
OPTIONS = ["V100:8", "A100:8", "T4:4", "A10G:4", "g6.12xlarge", "p5.48xlarge"]
REGIONS = ["us-east-1", "us-west-2", "eu-west-1"]


def recipe(**resources) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"nodes": 1, **resources},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 10_000_000},
        }
    )


def tried(one: Recipe, quotes: Quotes | None = None):
    plan = planner.build_plan(
        PlannerInput(
            one,
            target="aws",
            catalog=CATALOG,
            quotes=quotes or Quotes(),
            default_region="us-east-1",
            today=date(2026, 8, 1),
        )
    )
    return plan.candidates


def test_prefer_price_tries_lowest_hourly_cost_first():
    found = tried(recipe(any_of=["A100:8", "T4:4"], prefer="price"))
    assert found[0].instance_type == "g4dn.12xlarge"
    assert {one.gpu for one in found} == {"T4", "A100"}


def test_prefer_speed_tries_fastest_gpu_first():
    found = tried(recipe(any_of=["T4:4", "A100:8", "V100:8"], prefer="speed"))
    kinds = list(dict.fromkeys(one.gpu for one in found))
    assert kinds == ["A100", "V100", "T4"]


def test_prefer_region_tries_all_hardware_in_the_first_region_first():
    specs, places = ["V100:8", "T4:4"], ["us-west-2", "us-east-1"]
    prices = {
        ("g4dn.12xlarge", zone, "on-demand"): Decimal("3.9")
        for zone in CATALOG.types["g4dn.12xlarge"].zones["us-west-2"]
    }
    found = tried(recipe(any_of=specs, regions=places, prefer="region"), Quotes(prices=prices))
    assert list(dict.fromkeys((one.region, one.gpu) for one in found)) == [
        ("us-west-2", "V100"),
        ("us-west-2", "T4"),
        ("us-east-1", "V100"),
        ("us-east-1", "T4"),
    ]


def test_prefer_spot_falls_back_to_on_demand():
    found = tried(recipe(gpu="V100:8", prefer="spot"))
    assert [(one.zone, one.market) for one in found] == [
        ("us-east-1c", "spot"),
        ("us-east-1d", "spot"),
        ("us-east-1c", "on-demand"),
        ("us-east-1d", "on-demand"),
    ]
    only = tried(recipe(gpu="V100:8", prefer="spot", market="spot"))
    assert {one.market for one in only} == {"spot"}


def test_prefer_spot_with_a_reservation_is_rejected():
    held = recipe(gpu="V100:8", market="reservation", reservation="cr-0a1b2c3d4e5f60718", prefer="spot")
    (problem,) = rules.rule_problems(held)
    assert problem.path == ("resources", "prefer")


@st.composite
def worlds(draw):
    one = recipe(
        any_of=draw(st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4, unique=True)),
        regions=draw(st.lists(st.sampled_from(REGIONS), max_size=3, unique=True)),
        nodes=draw(st.integers(1, 4)),
        market=draw(st.sampled_from(["on-demand", "spot"])),
    )
    keys = [found.key for found in tried(one)]
    refused = draw(st.lists(st.sampled_from(keys), max_size=3)) if keys else []
    return one, Quotes(refused=dict.fromkeys(refused, 60))


@settings(deadline=None, max_examples=60)
@given(worlds(), st.sampled_from(sorted(SORT_RULES)))
def test_preference_reorders_candidates_without_changing_them(world, prefer):
    one, quotes = world
    resources = one.resources.model_copy(update={"prefer": prefer})
    preferred = tried(one.model_copy(update={"resources": resources}), quotes)
    plain = tried(one, quotes)
    same = {found for found in preferred if prefer != "spot" or found.market == one.resources.market}
    assert same == set(plain)
    late = [found.key in quotes.refused for found in preferred]
    assert late == sorted(late)
    if prefer == "price":
        for part in (False, True):
            hours = [
                costs.hourly_usd(c.costs(one.resources.nodes))
                for c, last in zip(preferred, late, strict=True)
                if last is part
            ]
            assert hours == sorted(hours)


@pytest.mark.parametrize("prefer", sorted(SORT_RULES))
def test_equally_ranked_candidates_keep_recipe_order(prefer):
    found = [
        one.zone
        for one in tried(recipe(instance_type="p3dn.24xlarge", zones=["us-east-1d", "us-east-1c"], prefer=prefer))
    ]
    assert list(dict.fromkeys(found)) == ["us-east-1d", "us-east-1c"]
