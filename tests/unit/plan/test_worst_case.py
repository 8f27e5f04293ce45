"""The worst-case cost of a plan compared with what the ledger records."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.catalog import load
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe
from tests.cluster_records import cluster_record

CATALOG = load()


def recipe(**resources) -> Recipe:
    budget = {"max_usd": 1_000_000_000, "expiry": resources.pop("expiry", "8h")}
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": resources,
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": budget,
        }
    )


def make(one: Recipe) -> Plan:
    return planner.build_plan(
        PlannerInput(
            one, target="aws", catalog=CATALOG, quotes=Quotes(), default_region="us-east-1", today=date(2026, 8, 1)
        )
    )


@st.composite
def recipes(draw):
    return recipe(
        any_of=draw(st.lists(st.sampled_from([*list(CATALOG.types)[::3], "V100:8", "A100:8"]), min_size=1, max_size=3)),
        nodes=draw(st.integers(1, 1000)),
        market=draw(st.sampled_from(["on-demand", "spot"])),
        prefer=draw(st.sampled_from(["order", "spot"])),
        regions=draw(st.lists(st.sampled_from(["us-east-1", "us-west-2", "eu-west-1", "ap-southeast-5"]), max_size=3)),
        disk=f"{draw(st.integers(1, 16_000))}GiB",
        expiry=f"{draw(st.integers(1, 10_000))}m",
    )


@settings(deadline=None)  # a busy machine is no bug
@given(recipes(), st.integers(1, 100_000))
def test_worst_case_is_never_below_recorded_cost_until_expiry(one, lived_s):
    """For every candidate and every end time until the expiry."""
    plan = make(one)
    assert (plan.worst_case_usd is None) == (not plan.candidates)
    start = datetime(2026, 8, 1, tzinfo=UTC)
    end = start + timedelta(seconds=min(lived_s, plan.expiry_s))
    for candidate in plan.candidates:
        booked = spending_of(launched_record(plan, candidate), start)
        ids = tuple(f"i-{number}" for number in range(plan.nodes))
        entry = LedgerEntry(booked, "closed", ids, launched_at=start, closed_at=end)
        assert entry_usd(entry, end) <= plan.worst_case_usd


def test_worst_case_equals_ledger_cost_of_dearest_candidate_at_expiry():
    plan = make(recipe(instance_type="p4d.24xlarge", nodes=6))
    start = datetime(2026, 8, 1, tzinfo=UTC)
    end = start + timedelta(seconds=plan.expiry_s)
    booked = spending_of(launched_record(plan, plan.most_expensive), start)
    assert {one.kind for one in booked.beside} == {"disks", "elastic-ips", "gateway"}
    entry = LedgerEntry(booked, "closed", tuple("abcdef"), launched_at=start, closed_at=end)
    assert Decimal(0) <= plan.worst_case_usd - entry_usd(entry, end) < Decimal("0.01")


def launched_record(plan, candidate):
    """Return the cluster record that `up` would write."""
    return cluster_record(
        recipe=plan.recipe.name,
        target=plan.target,
        created_at=datetime(2026, 8, 1, tzinfo=UTC),
        expires_at=datetime(2026, 8, 1, tzinfo=UTC) + timedelta(seconds=plan.expiry_s),
        zone=candidate.zone,
        instance_type=candidate.instance_type,
        nodes=plan.nodes,
        node_hourly_usd=str(candidate.node_hourly_usd),
        beside=tuple(item.as_json() for item in candidate.beside),
    )
