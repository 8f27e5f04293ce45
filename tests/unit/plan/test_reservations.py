"""Reserved capacity in the plan: where it lies, whether it fits, what it costs, and how long a run in it lasts."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.reservations import Reservation
from cloudgpu.recipe.schema import Recipe

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ID = "cr-0a1b2c3d4e5f60718"


def held(**changes) -> Reservation:
    fields = {
        "id": ID,
        "kind": "capacity-block",
        "region": "us-east-1",
        "zone": "us-east-1d",
        "instance_type": "p3dn.24xlarge",
        "state": "active",
        "free": 2,
        "starts_at": NOON - timedelta(hours=1),
        "ends_at": NOON + timedelta(hours=100),
        **changes,
    }
    return Reservation(**fields)


def make(one: Reservation | None, market: str = "capacity-block", *, live: bool = True, **resources) -> Plan:
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {
                "instance_type": "p3dn.24xlarge",
                "nodes": 2,
                "market": market,
                "reservation": ID,
                **resources,
            },
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 1000, "expiry": "8h"},
        }
    )
    quotes = Quotes(live=True, reservation=one, asked_at=NOON) if live else Quotes()
    return planner.build_plan(
        PlannerInput(
            recipe, target="aws", catalog=load(), quotes=quotes, default_region="us-east-1", today=date(2026, 8, 1)
        )
    )


def said(plan: Plan) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in plan.findings if one.check == "reservation"]


def test_the_only_candidate_is_where_the_capacity_lies():
    plan = make(held())
    assert [(one.zone, one.market, one.reservation) for one in plan.candidates] == [
        ("us-east-1d", "capacity-block", ID)
    ]
    assert plan.starts_at is None
    assert plan.expiry_s == 8 * 3600


def test_a_block_is_paid_for_and_a_reservation_costs_the_hour():
    block = make(held())
    # What goes with the nodes was not paid for in advance.
    assert [(item.kind, bool(item.usd)) for item in block.costs] == [
        ("nodes", False),
        ("disks", True),
        ("addresses", True),
    ]
    assert said(make(held()))[0][1].startswith(f"{ID} is paid in advance")
    plan = make(held(kind="default", ends_at=None), "reservation")
    assert plan.hourly_usd == Decimal("62.424") + block.hourly_usd
    assert said(plan) == []


def test_a_run_ends_before_aws_takes_the_nodes_of_a_block():
    plan = make(held(ends_at=NOON + timedelta(hours=3)))
    assert plan.expiry_s == 2.5 * 3600
    assert said(plan)[-1] == (
        "note",
        f"{ID} ends at 2026-11-21 15:00 UTC, and AWS terminates its nodes 30 minutes earlier: the expiry is 2h30m "
        "instead of 8h",
    )


def test_a_block_that_starts_later_is_waited_for_and_its_time_counts_from_there():
    plan = make(held(state="scheduled", starts_at=NOON + timedelta(hours=5), ends_at=NOON + timedelta(hours=9)))
    assert plan.starts_at == NOON + timedelta(hours=5)
    assert plan.expiry_s == 3.5 * 3600
    assert ("note", f"{ID} starts at 2026-11-21 17:00 UTC: `up` waits for it") in said(plan)
    assert plan.as_json()["starts_at"] == "2026-11-21T17:00:00+00:00"


def test_what_is_as_good_as_over_is_refused():
    plan = make(held(ends_at=NOON + timedelta(minutes=35)))
    assert plan.errors[0].message == f"{ID} ends too soon for a run: AWS terminates its nodes 30 minutes before the end"


@pytest.mark.parametrize(
    ("one", "message"),
    [
        (None, f"no reservation {ID} found in us-east-1"),
        (held(instance_type="p4d.24xlarge"), f"{ID} is for p4d.24xlarge, not for p3dn.24xlarge"),
        (held(free=1), f"{ID} has 1 free instance, but 2 are needed"),
        (held(state="expired"), f"{ID} is expired"),
        (held(kind="default"), f"{ID} is a different kind of reservation; set resources.market to reservation"),
    ],
)
def test_what_does_not_fit_is_an_error_of_the_plan(one, message):
    plan = make(one)
    assert plan.candidates == ()
    assert [error.message for error in plan.errors] == [message]


def test_another_zone_than_the_recipes_is_an_error():
    plan = make(held(), zones=["us-east-1c"])
    assert plan.candidates == ()
    assert plan.errors[0].message.startswith(f"{ID} is in us-east-1d")


def test_offline_nobody_knows_it():
    plan = make(None, live=False)
    assert said(plan) == [("warning", f"{ID} was not checked: its zone, start and end are unknown")]
