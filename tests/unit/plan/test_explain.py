"""Every possible candidate is accepted or rejected, and the deciding rule is named."""

import json
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.catalog import load
from cloudgpu.cli.commands.plan import explanation_lines, offers_json, offers_lines
from cloudgpu.plan import planner
from cloudgpu.plan.candidate_list import explain_candidates, group_by_rule
from cloudgpu.plan.capacity import Reservation, VcpuHeadroom
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe

CATALOG = load()


def asked(quotes: Quotes | None = None, **resources) -> PlannerInput:
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"nodes": 2, **resources},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 10_000_000},
        }
    )
    return PlannerInput(recipe, "aws", CATALOG, quotes or Quotes(), "us-east-1", date(2026, 8, 1))


def rules_of(planner_input: PlannerInput) -> dict[str, int]:
    return {group.rule: group.count for group in group_by_rule(explain_candidates(planner_input)) if not group.kept}


def test_accepted_candidates_have_a_position_and_a_rule():
    found = explain_candidates(asked(instance_type="p3dn.24xlarge"))
    assert [(one.zone, one.kept, one.place, one.rule) for one in found] == [
        ("us-east-1c", True, 1, "order"),
        ("us-east-1d", True, 2, "order"),
    ]
    assert found[0].label == "p3dn.24xlarge in us-east-1c on-demand"


def test_recently_refused_candidate_is_ordered_last_with_cool_down_rule():
    quotes = Quotes(refused={("p3dn.24xlarge", "us-east-1c", "on-demand"): 60})
    last = explain_candidates(asked(quotes, instance_type="p3dn.24xlarge"))[-1]
    assert (last.zone, last.kept, last.rule) == ("us-east-1c", True, "cool-down")


def test_rejected_types_regions_and_zones_are_counted_by_rule():
    quotes = Quotes(zones={("p3dn.24xlarge", "us-east-1"): ("us-east-1c", "us-east-1d", "us-east-1-bos-1a")}, live=True)
    planner_input = asked(
        quotes, any_of=["V100:8", "p3.16xlarge"], regions=["us-east-1", "eu-central-1"], zones=["us-east-1c"]
    )
    found = rules_of(planner_input)
    assert found["retired"] == 1
    assert found["zone"] == 2
    assert found["offered"] >= 1
    out = [one for one in explain_candidates(planner_input) if one.rule == "zone"]
    assert {one.zone: one.why for one in out} == {
        "us-east-1d": "the recipe allows only us-east-1c",
        "us-east-1-bos-1a": "us-east-1-bos-1a is a local zone outside the data centers of us-east-1 and costs more",
    }


def test_zones_outside_the_reservation_are_rejected():
    held = Reservation(
        "cr-0a1b2c3d4e5f60718", "default", "us-east-1", "us-east-1d", "p3dn.24xlarge", "active", 2, None, None
    )
    spec = {"instance_type": "p3dn.24xlarge", "market": "reservation", "reservation": held.id}
    found = explain_candidates(asked(Quotes(reservation=held, live=True), **spec))
    assert [(one.zone, one.kept, one.rule) for one in found] == [
        ("us-east-1d", True, "order"),
        ("us-east-1c", False, "reservation"),
    ]


def test_unknown_region_is_rejected_by_region_rule():
    assert rules_of(asked(gpu="V100:8", regions=["us-east-1", "mars-1"])) == {"region": 1}


OPTIONS = [*list(CATALOG.types)[::7], "V100:8", "T4:4", "A100:8", "p3.16xlarge", "nope.large"]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(OPTIONS), min_size=1, max_size=4),
    st.lists(st.sampled_from(["us-east-1", "eu-west-1", "mars-1"]), max_size=3),
    st.sampled_from(["order", "price", "speed", "region", "spot"]),
)
def test_explanation_covers_all_plan_candidates_and_every_type(specs, regions, prefer):
    planner_input = asked(any_of=specs, regions=regions, prefer=prefer)
    plan = planner.build_plan(planner_input)
    found = explain_candidates(planner_input)
    kept = [(one.instance_type, one.zone, one.market) for one in found if one.kept]
    assert kept == [one.key for one in plan.candidates]
    assert [one.place for one in found if one.kept] == list(range(1, len(kept) + 1))
    assert all(one.why and one.rule for one in found)
    assert {one.instance_type for one in found} == {
        kind.name for kind in planner_input.types
    } or not planner_input.regions
    assert sum(group.count for group in group_by_rule(found)) == len(found)


def test_offers_table_matches_expected_text():
    quotes = Quotes(quotas={("us-east-1", "L-417A185B"): VcpuHeadroom(384, 96)})
    planner_input = asked(quotes, any_of=["V100:8", "p3.16xlarge"], regions=["us-east-1", "eu-central-1", "eu-north-1"])
    plan = planner.build_plan(planner_input)
    assert (
        "\n".join(offers_lines(plan, planner_input, explain_candidates(planner_input)))
        == """\
tiny: 2 candidates for 2 nodes

  try  type           zone        market     USD/h per node  USD/h total  priced on   quota (vCPUs)
    1  p3dn.24xlarge  us-east-1c  on-demand          31.212      62.4785  2026-07-20  192 needed, 288 of 384 free
    2  p3dn.24xlarge  us-east-1d  on-demand          31.212      62.4785  2026-07-20  192 needed, 288 of 384 free

tried in this order: hardware, regions and zones in the order of the recipe

accepted: 2; hardware, regions and zones in the order of the recipe [order]
rejected: 2 [offered]
    p3dn.24xlarge in eu-central-1, eu-north-1
rejected: 1 [retired]
    p3.16xlarge: AWS retired p3.16xlarge on 2025-12-20, and it can no longer be launched; its successor is \
p3dn.24xlarge"""
    )
    told = offers_json(plan, planner_input, explain_candidates(planner_input))
    assert told["candidates"][0]["quota"] == {
        "code": "L-417A185B",
        "name": "Running On-Demand P instances",
        "needed_vcpus": 192,
        "limit_vcpus": 384,
        "free_vcpus": 288,
    }
    assert Decimal(told["candidates"][0]["hourly_usd"]) == plan.hourly_usd
    assert told["rules"][0] == {"rule": "order", "kept": True, "count": 2}
    assert told["considered"][-1]["zone"] is None


def test_unreported_quota_is_shown_as_unknown_not_zero():
    planner_input = asked(gpu="V100:8")
    plan = planner.build_plan(planner_input)
    assert "192 needed, headroom unknown" in "\n".join(
        offers_lines(plan, planner_input, explain_candidates(planner_input))
    )
    (first, *_) = offers_json(plan, planner_input, explain_candidates(planner_input))["candidates"]
    assert (first["quota"]["limit_vcpus"], first["quota"]["free_vcpus"]) == (None, None)


def test_rejected_recipe_still_produces_valid_offers_json():
    planner_input = asked(any_of=["p3.16xlarge", "V100:8"], regions=["eu-central-1"])
    told = json.loads(
        json.dumps(offers_json(planner.build_plan(planner_input), planner_input, explain_candidates(planner_input)))
    )
    assert told["candidates"] == []
    assert any(finding["remedies"] for finding in told["findings"])
    assert {rule["rule"] for rule in told["rules"]} >= {"retired", "offered"}


@pytest.mark.parametrize("resources", [{"gpu": "H900:8"}, {"instance_type": "x.large"}])
def test_unknown_hardware_produces_an_empty_explanation(resources):
    planner_input = asked(**resources)
    assert explain_candidates(planner_input) == ()
    assert list(explanation_lines(planner.build_plan(planner_input), ())) == [
        "there are no offers: the catalog does not contain the hardware that tiny requests"
    ]
