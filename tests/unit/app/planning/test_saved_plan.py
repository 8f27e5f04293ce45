"""Saved plans: tampering is detected, and every change since saving is reported."""

import json
from dataclasses import replace
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.app.planning import plan_files
from cloudgpu.app.planning.plan_files import PlanInputs, StoredPlan
from cloudgpu.catalog import load
from cloudgpu.errors import UsageError
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe

CATALOG = load()
WORLD = PlanInputs("aws", "123456789012", "", "recipe", "workdir", "catalogue")


def make(quotes: Quotes | None = None, **sections) -> Plan:
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"gpu": "V100:8", "nodes": 2},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 10_000},
            **sections,
        }
    )
    return planner.build_plan(
        PlannerInput(
            recipe,
            target="aws",
            catalog=CATALOG,
            quotes=quotes or Quotes(),
            default_region="us-east-1",
            today=date(2026, 8, 1),
        )
    )


def kept(plan: Plan) -> StoredPlan:
    one = StoredPlan("2026-08-01T12:00:00+00:00", "0", "/r/recipe.yaml", ("a=1",), "us-east-1", WORLD, plan.as_json())
    return plan_files.parse_saved_plan(plan_files.format_saved_plan(one), "agreed.json")


def changed(plan: Plan, fresh: Plan, world: PlanInputs = WORLD) -> list[str]:
    return list(plan_files.input_changes(kept(plan), world, fresh))


def quoted(usd: str, *zones: str) -> Quotes:
    return Quotes(prices={("p3dn.24xlarge", zone, "on-demand"): Decimal(usd) for zone in zones})


def test_saved_plan_round_trips_and_keeps_its_candidates():
    plan = make()
    one = kept(plan)
    assert one.candidates == plan.candidates
    assert one.sets == ("a=1",)
    assert changed(plan, plan) == []
    fresh = replace(plan, candidates=plan.candidates[::-1])
    assert plan_files.with_saved_candidates(one, fresh).candidates == plan.candidates


def test_price_increase_is_a_change_and_price_decrease_is_not():
    plan = make()
    assert changed(plan, make(quoted("32", "us-east-1c"))) == [
        "us-east-1c p3dn.24xlarge on-demand costs 32 USD/h per node, not 31.212"
    ]
    assert changed(plan, make(quoted("30", "us-east-1c", "us-east-1d"))) == []


def test_zone_that_no_longer_offers_the_type_is_reported():
    gone = Quotes(zones={("p3dn.24xlarge", "us-east-1"): ("us-east-1d",)}, live=True)
    (line,) = changed(make(), make(gone))
    assert line.startswith("us-east-1c p3dn.24xlarge on-demand is no longer available")


def test_changed_image_address_mode_and_disk_cost_are_reported():
    plan = make()
    first = plan.candidates[0]
    dearer = tuple(replace(item, usd=(item.usd or Decimal(0)) + 1) for item in first.beside)
    fresh = replace(
        plan,
        candidates=(
            replace(first, image="ami-2", public_address="elastic", efa_interfaces=0, beside=dearer),
            *plan.candidates[1:],
        ),
    )
    lines = changed(plan, fresh)
    label = "us-east-1c p3dn.24xlarge on-demand"
    assert lines[0] == f"{label}: items other than the nodes cost 2.054444445 USD/h, not 0.054444445"
    assert lines[1] == f"the machine image of us-east-1c p3dn.24xlarge on-demand is ami-2, not {first.image}"
    assert [line.partition(" of us-east")[0] for line in lines[2:]] == [
        "the number of EFA interfaces",
        "the public address",
    ]


def test_additional_unpriced_item_is_reported_by_count():
    plan = make()
    first = plan.candidates[0]
    unpriced = replace(first.beside[0], usd=None)
    fresh = replace(plan, candidates=(replace(first, beside=(*first.beside, unpriced)), *plan.candidates[1:]))
    label, count = "us-east-1c p3dn.24xlarge on-demand", len(first.beside)
    assert changed(plan, fresh) == [f"{label} has {count + 1} billed items besides the nodes, not {count}"]


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("target", "the target is other, not aws"),
        ("account", "the account is other, not 123456789012"),
        ("endpoint", "the endpoint has changed"),
        ("recipe_digest", "the recipe has changed"),
        ("workdir_digest", "the work directory has changed"),
        ("catalogue", "the catalog has changed"),
    ],
)
def test_each_changed_input_of_the_plan_is_reported(field, line):
    plan = make()
    assert changed(plan, plan, replace(WORLD, **{field: "other"})) == [line]


def test_changed_node_count_and_expiry_are_reported():
    plan = make()
    assert changed(plan, replace(plan, nodes=3, expiry_s=60))[:2] == [
        "the number of nodes is 3, not 2",
        "the expiry in seconds is 60, not 28800",
    ]


TEXT = plan_files.format_saved_plan(StoredPlan("now", "0", "/r", (), "us-east-1", WORLD, make().as_json()))


@settings(max_examples=60)
@given(st.integers(0, len(TEXT) - 1), st.characters(codec="ascii"))
def test_any_modified_character_in_saved_plan_is_detected(place, letter):
    forged = TEXT[:place] + letter + TEXT[place + 1 :]
    try:
        same = json.loads(forged) == json.loads(TEXT)
    except ValueError:
        same = False
    if not same:
        with pytest.raises(UsageError):
            plan_files.parse_saved_plan(forged, "agreed.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a plan saved by"),
        ("[]", "is not a plan saved by"),
        ('{"cloudgpu_plan": 1}', "is not a plan saved by"),
        ('{"cloudgpu_plan": 2, "sha256": ""}', "has format 2, but this version of cloudgpu reads format 1"),
        ('{"cloudgpu_plan": 1, "sha256": ""}', "was edited after it was saved"),
    ],
)
def test_invalid_saved_plan_is_rejected(text, message):
    with pytest.raises(UsageError, match=message):
        plan_files.parse_saved_plan(text, "agreed.json")


@pytest.mark.parametrize("name", ["note", "sha512", "plan2"])
def test_added_field_is_an_edit_even_if_the_checksum_is_right(name):
    content = {**json.loads(TEXT), name: 1}
    del content["sha256"]
    forged = json.dumps({**content, "sha256": plan_files._checksum(content)})
    with pytest.raises(UsageError, match="was edited after it was saved"):
        plan_files.parse_saved_plan(forged, "agreed.json")
