"""The entries of the ledger, the format of their times, and the version of the ledger's format.

An entry records an expected cost, the launch that caused it, and the end of the cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from cloudgpu.decoding import decode_as
from cloudgpu.errors import LedgerError

VERSION = 6
"""Version of the tables in `schema.py`. A ledger with a newer version is rejected."""
EntryState = Literal["open", "closed"]
Part = Literal["nodes", "gateway", "elastic-ips"]
"""Parts of an entry that can end separately; `nodes` includes every resource that AWS deletes with the nodes."""
OUTLASTING_PARTS: Final[tuple[Part, ...]] = ("gateway", "elastic-ips")
"""Kinds of `Surcharge` that cost money until they are deleted or released, even after the nodes are terminated."""
_CLOCK_ERROR: Final = timedelta(minutes=5)
"""AWS rejects requests from a clock that differs by more."""


def to_text(at: datetime) -> str:
    """Format a time, for example `2026-11-21T05:00:00.000000Z`."""
    if at.tzinfo is None:
        raise LedgerError(
            f"the ledger does not accept a time without a UTC offset: {at.isoformat()}", hint="please report this bug"
        )
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_text(text: str) -> datetime:
    """Parse a time that `to_text` wrote."""
    try:
        at = datetime.fromisoformat(text)
        # Skip full decoding for times in the format of `to_text`, because there may be thousands of rows.
        return at if at.tzinfo is UTC else decode_as(datetime, text)
    except ValueError as err:
        message = f"the ledger contains an invalid time: {err}"
        raise LedgerError(message, hint="restore the ledger from a backup, or correct the row") from err


@dataclass(frozen=True)
class Surcharge:
    """A cost in addition to the nodes: disks, addresses or a NAT gateway.

    Attributes:
        kind: Kind of resource, for example `gateway`. An entry has at most one surcharge of each kind.
        hourly_usd: Total price of all `count` resources in USD per hour, or None if unknown.
        whole_hours: Whether every started hour is charged in full.
    """

    kind: str
    count: int
    hourly_usd: Decimal | None
    whole_hours: bool = False


@dataclass(frozen=True)
class Spending:
    """An expected cost, written to the ledger before the call that causes it.

    Attributes:
        entry_id: Deterministic ID, so that writing the entry again does not add a row.
        simulated: Whether this is a cost of the rehearsal cloud, which is never added to real costs.
        node_hourly_usd: Price of one node in USD per hour.
        nodes: Number of requested nodes; 0 for storage and images, whose cost is in `beside` and whose name is in
            `cluster`.
        run_id: ID of the run that the nodes are for; empty for `up`.
        beside: Surcharges, totaled over all nodes.
    """

    entry_id: str
    cluster: str
    run_id: str
    recipe: str
    owner: str
    team: str
    target: str
    simulated: bool
    account: str
    endpoint: str
    region: str
    zone: str
    instance_type: str
    market: str
    nodes: int
    node_hourly_usd: Decimal
    opened_at: datetime
    expires_at: datetime
    beside: tuple[Surcharge, ...] = ()


@dataclass(frozen=True)
class PartEnd:
    """The end of one part of an entry. If `estimated`, `at` is an upper bound, because the cloud reported no time."""

    at: datetime
    estimated: bool = False


@dataclass(frozen=True)
class LedgerEntry:
    """An expected cost with its launch and end. `closed_at` is set only after the cloud has confirmed the end.

    Attributes:
        parts: Recorded ends of parts that ended before the entry was closed, or whose end is estimated.
    """

    spending: Spending
    state: EntryState
    instance_ids: tuple[str, ...]
    launched_at: datetime | None
    closed_at: datetime | None
    parts: Mapping[Part, PartEnd] = field(default_factory=dict, hash=False)

    @property
    def outlasting_parts(self) -> tuple[Part, ...]:
        """The parts of this entry that can cost money after the nodes are terminated."""
        kinds = {surcharge.kind for surcharge in self.spending.beside}
        return tuple(part for part in OUTLASTING_PARTS if part in kinds)

    def within_lifetime(self, at: datetime, now: datetime) -> datetime:
        """Limit a reported time to the time since the launch, and an implausible one to `now`, the cloud's time.

        `now` is known only to within seconds, so a reported time shortly after it is right.
        """
        return max(self.launched_at or self.spending.opened_at, at if at <= now + _CLOCK_ERROR else now)
