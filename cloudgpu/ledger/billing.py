"""Compute costs: per second with a minimum of one minute, in whole micro-dollars so that sums are exact."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from itertools import accumulate, pairwise

from cloudgpu.ledger.entry import OUTLASTING_PARTS, LedgerEntry, Part, Surcharge

MINIMUM_S = 60
"""Minimum time, in seconds, that AWS charges for every instance, disk and address."""
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge: the fields of a ledger entry that determine its cost.

    Attributes:
        nodes: Number of launched nodes, or of requested nodes until the launch is confirmed; 0 if no nodes are charged.
        start: Launch time. Until the launch is confirmed, the time at which the entry was opened, because nodes may
            have been launched since then.
        end: Recorded end of the charged parts, or None if no end is recorded yet.
        launched: Whether the launch is confirmed. A closed entry without a confirmed launch costs nothing.
        beside_nano_usd: Surcharges in nano-dollars per hour, charged by the second.
        whole_hour_nano_usd: Surcharges in nano-dollars per hour, charged in full for every started hour.
        unpriced: Whether a surcharge has no known price and is therefore missing from all sums.
        estimated: Whether any end in the ledger entry is an upper bound, because the cloud reported no time. Only the
            entry's first charge is marked, so that reports count the entry once.
    """

    cluster: str
    run_id: str
    recipe: str
    owner: str
    team: str
    simulated: bool
    nodes: int
    node_hourly_usd: str
    launched: bool
    start: datetime
    end: datetime | None
    beside_nano_usd: int = 0
    whole_hour_nano_usd: int = 0
    unpriced: bool = False
    estimated: bool = False
    instance_type: str = ""

    @property
    def free(self) -> bool:
        """Whether the charge is closed and nothing was launched."""
        return self.end is not None and not self.launched

    def seconds(self, now: datetime) -> int:
        """Return the seconds charged per node, at least `MINIMUM_S`. An open charge is counted up to `now`."""
        used = (self.end or now) - self.start
        return max(MINIMUM_S, math.ceil(used.total_seconds()))


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill for a charge: the cost, the end of the charged time, and the charged node-milliseconds."""

    until: datetime
    micro_usd: int
    node_ms: int


def charges(entry: LedgerEntry) -> list[Charge]:
    """Return an entry's charges, starting with the nodes' charge. Parts that end at the same time share a charge."""
    ends: dict[datetime | None, list[Part]] = {}
    for part in ("nodes", *entry.outlasting_parts):
        ends.setdefault(_end(entry, part), []).append(part)
    return [
        _charge(entry, parts, end, estimated=number == 0 and any(part.estimated for part in entry.parts.values()))
        for number, (end, parts) in enumerate(ends.items())
    ]


def _end(entry: LedgerEntry, part: Part) -> datetime | None:
    part_end = entry.parts.get(part)
    return part_end.at if part_end is not None else entry.closed_at


def _charge(entry: LedgerEntry, parts: Sequence[Part], end: datetime | None, *, estimated: bool) -> Charge:
    spending = entry.spending
    nodes = (len(entry.instance_ids) or spending.nodes) if spending.nodes and "nodes" in parts else 0
    surcharges = [
        surcharge
        for surcharge in spending.beside
        if (surcharge.kind if surcharge.kind in OUTLASTING_PARTS else "nodes") in parts
    ]
    return Charge(
        cluster=spending.cluster,
        run_id=spending.run_id,
        recipe=spending.recipe,
        owner=spending.owner,
        team=spending.team,
        simulated=spending.simulated,
        nodes=nodes,
        node_hourly_usd=format(spending.node_hourly_usd, "f"),
        launched=entry.launched_at is not None,
        start=entry.launched_at or spending.opened_at,
        end=end,
        beside_nano_usd=_nano_usd(surcharges, whole_hours=False),
        whole_hour_nano_usd=_nano_usd(surcharges, whole_hours=True),
        unpriced=any(surcharge.hourly_usd is None for surcharge in surcharges),
        estimated=estimated,
        instance_type=spending.instance_type,
    )


def nano_usd(price: Decimal) -> int:
    """Convert a price in dollars to whole nano-dollars, rounded up."""
    return int(price.scaleb(9).to_integral_value(ROUND_CEILING))


def _nano_usd(surcharges: Sequence[Surcharge], *, whole_hours: bool) -> int:
    known = (surcharge.hourly_usd for surcharge in surcharges if surcharge.whole_hours is whole_hours)
    return sum(nano_usd(price) for price in known if price is not None)


def entry_usd(entry: LedgerEntry, now: datetime) -> Decimal:
    """Return the cost of an entry in USD, up to `now` if the entry is open."""
    return usd(sum(ParsedPrices().bill(charge, now).micro_usd for charge in charges(entry)))


class ParsedPrices:
    """Calculates bills and caches parsed prices, because a ledger has many entries but few distinct prices."""

    def __init__(self) -> None:
        self._nano: dict[str, int] = {}

    def bill(self, charge: Charge, now: datetime) -> Bill:
        """Bill a charge up to its end, or up to `now`, with the cost rounded half up to micro-dollars."""
        seconds = charge.seconds(now)
        node_s = 0 if charge.free else charge.nodes * seconds
        nano_usd_s = self._rate(charge.node_hourly_usd) * node_s
        if not charge.free:
            whole_s = -(-seconds // _HOUR_S) * _HOUR_S
            nano_usd_s += charge.beside_nano_usd * seconds + charge.whole_hour_nano_usd * whole_s
        micro_usd = (nano_usd_s + 1_800_000) // 3_600_000
        return Bill(charge.start + timedelta(seconds=seconds), micro_usd, node_s * 1000)

    def _rate(self, text: str) -> int:
        if text not in self._nano:
            self._nano[text] = int(Decimal(text).scaleb(9))
        return self._nano[text]


def usd(micro_usd: int) -> Decimal:
    """Convert micro-dollars to dollars without rounding."""
    return Decimal(micro_usd).scaleb(-6)


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` in proportion to `weights` into whole numbers that add up to `total`."""
    if len(weights) == 1:
        return [total]
    whole = sum(weights)
    reached = (total * weight // whole for weight in accumulate(weights, initial=0))
    return [upto - before for before, upto in pairwise(reached)]
