"""Capacity that limits a plan: Capacity Reservations, Capacity Blocks, and the headroom of quotas."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from cloudgpu.recipe.field_types import DurationS
from cloudgpu.text import plural

ReservationKind = Literal["default", "capacity-block"]
TAKEN_BEFORE_END = timedelta(minutes=30)
"""AWS terminates the instances of a Capacity Block 30 minutes before the block ends."""
_USABLE = frozenset({"active", "scheduled", "payment-pending", "pending", "assessing"})
_KINDS = {"reservation": "default", "capacity-block": "capacity-block"}
"""Market -> reservation type in the EC2 API."""


@dataclass(frozen=True)
class VcpuHeadroom:
    """A quota's limit and usage in one region, counted in vCPUs of running instances."""

    limit_vcpus: int
    """Maximum number of vCPUs."""
    used_vcpus: int | None
    """vCPUs of running instances; None if the instances could not be counted."""
    read_at: datetime | None = None
    """Time at which the limit or the usage was read, whichever is earlier, in UTC; None if unknown."""

    @property
    def free_vcpus(self) -> int | None:
        """Number of vCPUs that can still be launched, at least 0; None if unknown."""
        return None if self.used_vcpus is None else max(0, self.limit_vcpus - self.used_vcpus)

    def since(self, *, live: bool) -> str:
        """Return ` (as of 2026-11-21 12:00 UTC)` for a cached quota in an offline plan; otherwise empty."""
        return "" if live or self.read_at is None else f" (as of {self.read_at:%Y-%m-%d %H:%M} UTC)"


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation as AWS describes it. Times are UTC, or None if not set."""

    id: str
    kind: ReservationKind
    region: str
    zone: str
    instance_type: str
    state: str
    free: int
    """Number of free instances. Before the reservation starts, all of its instances count as free."""
    starts_at: datetime | None
    ends_at: datetime | None


@dataclass(frozen=True)
class ReservationLookup:
    """The result of looking up a reservation. `found` is None if there is no reservation with that ID."""

    found: Reservation | None
    asked_at: datetime


def is_reserved(market: str) -> bool:
    """Return True if instances in this market launch into a reservation."""
    return market in _KINDS


def unsuitable_reasons(reservation: Reservation, market: str, nodes: int) -> Iterator[str]:
    """Yield the reasons why a reservation cannot be used: its kind, its state, or too few free instances."""
    if reservation.kind != _KINDS[market]:
        other = next(name for name, kind in _KINDS.items() if kind == reservation.kind)
        yield f"{reservation.id} is a different kind of reservation; set resources.market to {other}"
    if reservation.state not in _USABLE:
        yield f"{reservation.id} is {reservation.state}"
    elif reservation.free < nodes:
        instances = f"{plural(reservation.free, 'free instance')}"
        yield f"{reservation.id} has {instances}, but {nodes} are needed"


def usable_seconds(reservation: Reservation, now: datetime, expiry_s: int) -> int:
    """Return the expiry in seconds, shortened if AWS terminates the instances of a Capacity Block earlier."""
    if reservation.kind != "capacity-block" or reservation.ends_at is None:
        return expiry_s
    begin = max(now, reservation.starts_at or now)
    return max(0, min(expiry_s, int((reservation.ends_at - TAKEN_BEFORE_END - begin).total_seconds())))


def reservation_notes(reservation: Reservation, now: datetime, expiry_s: int) -> Iterator[str]:
    """Yield notes on a reservation for the user to read before confirming."""
    if reservation.kind == "capacity-block":
        yield f"{reservation.id} is paid in advance: its nodes cost nothing more and count as 0 USD in the worst case"
    if reservation.starts_at is not None and reservation.starts_at > now:
        yield f"{reservation.id} starts at {_utc(reservation.starts_at)}: `up` waits for it"
    usable_s = usable_seconds(reservation, now, expiry_s)
    if usable_s < expiry_s and reservation.ends_at is not None:
        message = (
            f"{reservation.id} ends at {_utc(reservation.ends_at)}, and AWS terminates its nodes 30 minutes earlier"
        )
        yield f"{message}: the expiry is {DurationS(usable_s)} instead of {DurationS(expiry_s)}"


def _utc(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M UTC")
