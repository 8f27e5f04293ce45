"""Compute costs: by the second with a minimum of a minute per instance, in micro-dollars so that sums are exact."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from itertools import accumulate, pairwise

from cloudgpu.ledger.entry import OUTLASTING, Entry, Part, Surcharge

MINIMUM_S = 60
"""AWS charges every instance, disk and address for at least this long."""
_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Charge:
    """The fields of an entry that billing needs.

    Attributes:
        nodes: Launched nodes, or requested ones while the response is outstanding.
        start: Launch time, or the time the entry was opened if its call never returned, because it may cost money.
        end: Confirmed end; None while the entry is open.
        launched: True if the call returned. A closed entry without a response costs nothing.
        beside_nano_usd: Other resources charged by the second, nano-dollars per hour.
        whole_hour_nano_usd: Other resources charged by whole hours, nano-dollars per hour.
        unpriced: True if another resource has no known price and is in no sum.
        estimated: True if the end is an upper bound, because the cloud reported no time.
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

    @property
    def free(self) -> bool:
        """True if nothing was launched in the end."""
        return self.end is not None and not self.launched

    def seconds(self, now: datetime) -> int:
        """Return the seconds charged for each node until its end, or until `now`."""
        used = (self.end or now) - self.start
        return max(MINIMUM_S, math.ceil(used.total_seconds()))


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill for a charge: end of the charged time, the amount, and the milliseconds of all nodes together."""

    until: datetime
    micro_usd: int
    node_ms: int


def charges(entry: Entry) -> list[Charge]:
    """Return an entry's charges: one for everything that ends at the same time, the nodes' first."""
    ends: dict[datetime | None, list[Part]] = {}
    for part in ("nodes", *entry.outlasting):
        ends.setdefault(_end(entry, part), []).append(part)
    return [
        _charge(entry, parts, end, estimated=number == 0 and any(end.estimated for end in entry.parts.values()))
        for number, (end, parts) in enumerate(ends.items())
    ]


def _end(entry: Entry, part: Part) -> datetime | None:
    found = entry.parts.get(part)
    return found.at if found is not None else entry.closed_at


def _charge(entry: Entry, parts: Sequence[Part], end: datetime | None, *, estimated: bool) -> Charge:
    what = entry.spending
    nodes = (len(entry.instance_ids) or what.nodes) if what.nodes and "nodes" in parts else 0
    beside = [
        surcharge for surcharge in what.beside if (surcharge.kind if surcharge.kind in OUTLASTING else "nodes") in parts
    ]
    return Charge(
        cluster=what.cluster,
        run_id=what.run_id,
        recipe=what.recipe,
        owner=what.owner,
        team=what.team,
        simulated=what.simulated,
        nodes=nodes,
        node_hourly_usd=format(what.node_hourly_usd, "f"),
        launched=entry.launched_at is not None,
        start=entry.launched_at or what.opened_at,
        end=end,
        beside_nano_usd=_nano_usd(beside, whole_hours=False),
        whole_hour_nano_usd=_nano_usd(beside, whole_hours=True),
        unpriced=any(surcharge.hourly_usd is None for surcharge in beside),
        estimated=estimated,
    )


def nano_usd(price: Decimal) -> int:
    """Return a price in whole nano-dollars, rounded up."""
    return int(price.scaleb(9).to_integral_value(ROUND_CEILING))


def _nano_usd(beside: Sequence[Surcharge], *, whole_hours: bool) -> int:
    known = (surcharge.hourly_usd for surcharge in beside if surcharge.whole_hours is whole_hours)
    return sum(nano_usd(price) for price in known if price is not None)


def entry_usd(entry: Entry, now: datetime) -> Decimal:
    """Return the cost of an entry until `now`, USD."""
    return usd(sum(Rates().bill(charge, now).micro_usd for charge in charges(entry)))


class Rates:
    """Prices in nano-dollars, cached by text, because a ledger has few prices and many entries."""

    def __init__(self) -> None:
        self._nano: dict[str, int] = {}

    def bill(self, charge: Charge, now: datetime) -> Bill:
        """Return the bill of a charge until its end, or until `now`, rounded half up to a micro-dollar."""
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
    """Convert micro-dollars to dollars exactly."""
    return Decimal(micro_usd).scaleb(-6)


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split `total` by `weights` into whole numbers that add up to `total` again."""
    if len(weights) == 1:
        return [total]
    whole = sum(weights)
    reached = (total * weight // whole for weight in accumulate(weights, initial=0))
    return [upto - before for before, upto in pairwise(reached)]
