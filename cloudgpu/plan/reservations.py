"""Capacity that is reserved: what AWS says of it, whether it fits, and how long a run in it may last. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from cloudgpu.recipe.units import DurationS

ReservationKind = Literal["default", "capacity-block"]

TAKEN_BEFORE_END = timedelta(minutes=30)
"""AWS ends the instances of a Capacity Block in its last half hour."""
_USABLE = frozenset({"active", "scheduled", "payment-pending", "pending", "assessing"})
_KINDS = {"reservation": "default", "capacity-block": "capacity-block"}
"""Market -> what AWS calls its reservations."""


@dataclass(frozen=True)
class Reservation:
    """One capacity reservation as AWS describes it; times are UTC, None where it has none."""

    id: str
    kind: ReservationKind
    region: str
    zone: str
    instance_type: str
    state: str
    free: int
    """Instances that still fit; before its start, all of them."""
    starts_at: datetime | None
    ends_at: datetime | None


@dataclass(frozen=True)
class Held:
    """What the cloud said of a reservation, and when; `found` is None where it has none of that id."""

    found: Reservation | None
    asked_at: datetime


def is_reserved(market: str) -> bool:
    """Whether a market launches into a reservation."""
    return market in _KINDS


def unfit(one: Reservation, market: str, nodes: int) -> Iterator[str]:
    """Why a reservation cannot carry the gang, wherever it lies."""
    if one.kind != _KINDS[market]:
        other = next(name for name, kind in _KINDS.items() if kind == one.kind)
        yield f"{one.id} is a reservation of another kind: set resources.market to {other}"
    if one.state not in _USABLE:
        yield f"{one.id} is {one.state}"
    elif one.free < nodes:
        yield f"{one.id} has {one.free} instances free, and {nodes} are wanted"


def lasting_s(one: Reservation, now: datetime, expiry_s: int) -> int:
    """Seconds that a run may last from its start: a Capacity Block's end, less AWS's half hour, cuts the expiry."""
    if one.kind != "capacity-block" or one.ends_at is None:
        return expiry_s
    begin = max(now, one.starts_at or now)
    return max(0, min(expiry_s, int((one.ends_at - TAKEN_BEFORE_END - begin).total_seconds())))


def told(one: Reservation, now: datetime, expiry_s: int) -> Iterator[str]:
    """What a person should know of it before saying yes."""
    if one.kind == "capacity-block":
        yield f"{one.id} was paid for in advance: its nodes cost nothing more, and the worst case counts them as 0 USD"
    if one.starts_at is not None and one.starts_at > now:
        yield f"{one.id} starts at {_utc(one.starts_at)}: `up` waits for it"
    lasting = lasting_s(one, now, expiry_s)
    if lasting < expiry_s and one.ends_at is not None:
        message = f"{one.id} ends at {_utc(one.ends_at)}, and AWS takes its nodes half an hour before"
        yield f"{message}: the expiry is {DurationS(lasting)} instead of {DurationS(expiry_s)}"


def _utc(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")
