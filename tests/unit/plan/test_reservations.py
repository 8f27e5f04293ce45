"""Reserved capacity in a plan: zone, eligibility, cost and expiry."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.capacity import Reservation
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
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


def make(
    one: Reservation | None, market: str = "capacity-block", *, live: bool = True, expiry: str = "8h", **resources
) -> Plan:
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
            "budget": {"max_usd": 1000, "expiry": expiry},
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


def test_only_candidate_is_in_the_zone_of_the_reservation():
    plan = make(held())
    assert [(one.zone, one.market, one.reservation) for one in plan.candidates] == [
        ("us-east-1d", "capacity-block", ID)
    ]
    assert plan.starts_at is None
    assert plan.expiry_s == 8 * 3600


def test_capacity_block_is_prepaid_and_reservation_is_billed_hourly():
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


def test_expiry_is_shortened_to_the_end_of_the_capacity_block():
    plan = make(held(ends_at=NOON + timedelta(hours=3)))
    assert plan.expiry_s == 2.5 * 3600
    assert said(plan)[-1] == (
        "note",
        f"{ID} ends at 2026-11-21 15:00 UTC, and AWS terminates its nodes 30 minutes earlier: the expiry is 2h30m "
        "instead of 8h",
    )


def test_expiry_counts_from_the_start_of_a_scheduled_block():
    plan = make(held(state="scheduled", starts_at=NOON + timedelta(hours=5), ends_at=NOON + timedelta(hours=9)))
    assert plan.starts_at == NOON + timedelta(hours=5)
    assert plan.expiry_s == 3.5 * 3600
    assert ("note", f"{ID} starts at 2026-11-21 17:00 UTC: `up` waits for it") in said(plan)
    assert plan.as_json()["starts_at"] == "2026-11-21T17:00:00Z"


def test_reservation_that_ends_too_soon_is_rejected():
    plan = make(held(ends_at=NOON + timedelta(minutes=35)))
    assert plan.errors[0].message == f"{ID} ends too soon for a run: AWS terminates its nodes 30 minutes before the end"


def test_short_run_in_a_long_reservation_is_accepted():
    assert make(held(ends_at=NOON + timedelta(hours=9)), expiry="5m").errors == ()


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
def test_reservation_not_matching_the_request_is_a_plan_error(one, message):
    plan = make(one)
    assert plan.candidates == ()
    assert [error.message for error in plan.errors] == [message]


def test_reservation_outside_the_requested_zones_is_a_plan_error():
    plan = make(held(), zones=["us-east-1c"])
    assert plan.candidates == ()
    assert plan.errors[0].message.startswith(f"{ID} is in us-east-1d")


def test_offline_plan_reports_reservation_as_unchecked():
    plan = make(None, live=False)
    assert said(plan) == [("warning", f"{ID} was not checked: its zone, start and end are unknown")]
