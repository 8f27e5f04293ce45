"""One row of the ledger: a node that costs money from one moment to another."""

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
    """Something that costs money beside the nodes for as long as they do: disks, addresses, a NAT gateway.

    Attributes:
        kind: Names it within its entry.
        hourly_usd: All `count` of them together, USD an hour; None where nobody knows the price.
        whole_hours: Whether a part of an hour costs as much as the whole.
    """

    kind: str
    count: int
    hourly_usd: Decimal | None
    whole_hours: bool = False


@dataclass(frozen=True)
class Spending:
    """What is about to be bought; written before the call that buys it.

    Attributes:
        entry_id: Deterministic: writing it twice is one row.
        simulated: Rehearsal money; never summed with real money.
        node_hourly_usd: Price of one node, USD an hour.
        nodes: How many nodes the call asks for; 0 for what costs money by itself, storage and images: all of it stands
            in `beside`, and `cluster` names it in the bill.
        run_id: The run it is for; empty for a bare `up`.
        beside: What is paid for beside the nodes, however many of them there are.
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
    """When a part of an entry ended. `estimated`: the cloud gave no time, so `at` is an upper bound."""

    at: datetime
    estimated: bool = False


@dataclass(frozen=True)
class Entry:
    """A spending with what became of it. `closed_at` is set only after the cloud confirmed the end.

    Attributes:
        parts: What ended at a moment of its own, before the entry was closed or with an estimated end.
    """

    spending: Spending
    state: EntryState
    instance_ids: tuple[str, ...]
    launched_at: datetime | None
    closed_at: datetime | None
    parts: Mapping[Part, PartEnd] = field(default_factory=dict, hash=False)

    @property
    def outlasting(self) -> tuple[Part, ...]:
        """The parts that cost money after the nodes have ended."""
        kinds = {one.kind for one in self.spending.beside}
        return tuple(part for part in OUTLASTING if part in kinds)
