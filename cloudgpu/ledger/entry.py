"""Ledger entries: resources that cost money from one time to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final, Literal

EntryState = Literal["open", "closed"]
Part = Literal["nodes", "gateway", "elastic-ips"]
"""What ends by itself: the nodes, with everything that AWS deletes together with them, and what outlives the nodes."""
OUTLASTING: Final[tuple[Part, ...]] = ("gateway", "elastic-ips")
"""Kinds of `Surcharge` that cost money until they are released, whatever becomes of the nodes."""


@dataclass(frozen=True)
class Surcharge:
    """A resource that is billed while the nodes exist, such as a disk, an address or a NAT gateway.

    Attributes:
        kind: Unique within the entry.
        hourly_usd: USD per hour for all `count` of them; None if the price is unknown.
        whole_hours: True if started hours are charged in full.
    """

    kind: str
    count: int
    hourly_usd: Decimal | None
    whole_hours: bool = False


@dataclass(frozen=True)
class Spending:
    """A launch that is about to happen; written before the call.

    Attributes:
        entry_id: Deterministic, so that writing it twice creates one row.
        simulated: True for a rehearsal; never added to real costs.
        node_hourly_usd: USD per hour of one node.
        nodes: Requested nodes; 0 for storage and images, which are listed in `beside`, with `cluster` as their name on
            the bill.
        run_id: The run that it is for; empty for `up`.
        beside: Other billed resources, independent of the number of nodes.
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
    """When a part of an entry ended. `estimated` means `at` is an upper bound, because the cloud reported no time."""

    at: datetime
    estimated: bool = False


@dataclass(frozen=True)
class Entry:
    """A launch and its outcome. `closed_at` is set only after the cloud confirmed the deletion.

    Attributes:
        parts: Parts that ended before the entry was closed, or whose end is estimated.
    """

    spending: Spending
    state: EntryState
    instance_ids: tuple[str, ...]
    launched_at: datetime | None
    closed_at: datetime | None
    parts: Mapping[Part, PartEnd] = field(default_factory=dict, hash=False)

    @property
    def outlasting(self) -> tuple[Part, ...]:
        """The parts that cost money after the nodes have terminated."""
        kinds = {surcharge.kind for surcharge in self.spending.beside}
        return tuple(part for part in OUTLASTING if part in kinds)
