"""Compute costs per second in whole micro-dollars, and attribute them to runs, idle time and days.

The minimum is one minute. Runs that overlap share the time equally, and the pieces of a charge add up to its bill.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from itertools import accumulate, pairwise
from math import lcm
from operator import attrgetter

from cloudgpu.ledger.entry import OUTLASTING_PARTS, LedgerEntry, Part, Surcharge

MINIMUM_S = 60
"""Minimum time, in seconds, that AWS charges for every instance, disk and address."""
_HOUR_S = 3600
NO_VALUE = "(none)"
"""Key of costs without an owner, team, recipe or GPU."""
IDLE = "(idle) "
"""Start of the key of time that no run used. The name of the cluster follows."""
_DAY = timedelta(days=1)


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


@dataclass(frozen=True)
class RunInterval:
    """A run and the time during which it used its cluster. `ended_at` is None until the end of the run is recorded."""

    run_id: str
    cluster: str
    recipe: str
    owner: str
    team: str
    state: str
    started_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True)
class Slice:
    """An interval of a charge during which the same set of runs used the cluster."""

    start: datetime
    end: datetime
    runs: tuple[RunInterval, ...]

    @property
    def microseconds(self) -> int:
        """Length of the interval in microseconds."""
        return (self.end - self.start) // timedelta(microseconds=1)


class RunIndex:
    """An index of runs by cluster and time, which keeps lookups fast in ledgers with many runs."""

    def __init__(self, runs: Iterable[RunInterval]) -> None:
        ended: dict[str, list[RunInterval]] = defaultdict(list)
        unended: dict[str, list[RunInterval]] = defaultdict(list)
        for run in sorted(runs, key=attrgetter("started_at")):
            (unended if run.ended_at is None else ended)[run.cluster].append(run)
        self._ended = {name: _Ended.of(of_cluster) for name, of_cluster in ended.items()}
        self._unended = dict(unended)

    def overlapping(self, charge: Charge, until: datetime) -> list[RunInterval]:
        """Return the runs that used the charge's cluster between the start of the charge and `until`."""
        ended = self._ended.get(charge.cluster)
        overlapping = ended.overlapping(charge.start, until) if ended else []
        # A run without a recorded end ended with its nodes at the latest, so only runs that started during the charge
        # can have used the charged nodes.
        unended = self._unended.get(charge.cluster, [])
        first = bisect_left(unended, charge.start, key=attrgetter("started_at"))
        last = bisect_left(unended, until, key=attrgetter("started_at"))
        return overlapping + unended[first:last]


@dataclass(frozen=True)
class _Ended:
    """The finished runs of one cluster, sorted by start. `latest_end[i]` is the latest end in `runs[: i + 1]`."""

    runs: Sequence[RunInterval]
    latest_end: Sequence[datetime]

    @staticmethod
    def of(runs: Sequence[RunInterval]) -> "_Ended":
        return _Ended(runs, list(accumulate((run.ended_at or run.started_at for run in runs), max)))

    def overlapping(self, start: datetime, end: datetime) -> list[RunInterval]:
        first = bisect_right(self.latest_end, start)
        last = bisect_left(self.runs, end, key=attrgetter("started_at"))
        return [run for run in self.runs[first:last] if run.ended_at and run.ended_at > start]


def slices(
    start: datetime, until: datetime, runs: Sequence[RunInterval], cuts: Collection[datetime]
) -> Iterator[Slice]:
    """Split the time from `start` to `until` at every start or end of a run, and at the cuts."""
    edges = {start, until, *_edges(runs), *cuts}
    for left, right in pairwise(sorted(edge for edge in edges if start <= edge <= until)):
        active = tuple(run for run in runs if run.started_at <= left and (run.ended_at or until) >= right)
        yield Slice(left, right, active)


def _edges(runs: Iterable[RunInterval]) -> Iterator[datetime]:
    for run in runs:
        yield run.started_at
        if run.ended_at:
            yield run.ended_at


@dataclass(frozen=True, slots=True)
class Owner:
    """To whom a piece belongs: its keys in reports by run and by recipe.

    Attributes:
        run: Key in reports by run, or None if the run used the cluster but has no share in the costs.
        recipe: Key in reports by recipe; None if `run` is None.
        run_id: ID of the run, or None for time that belongs to no run.
        idle: Whether the nodes were running without a run.
    """

    run: str | None
    recipe: str | None
    run_id: str | None
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a charge. `open_end` is True for the last pieces of an open charge, whose costs continue to grow."""

    owner: Owner
    start: datetime
    end: datetime
    micro_usd: int
    node_ms: int
    open_end: bool


def pieces(charge: Charge, runs: Sequence[RunInterval], bill: Bill, cuts: Collection[datetime] = ()) -> list[Piece]:
    """Split the bill for a charge among runs and idle time, and at the cuts.

    A slice that k runs share is split into k equal parts. The costs before and after a cut add up to the uncut costs.
    Only the rounding between runs that share the cluster depends on the cuts, by micro-dollars.

    Args:
        charge: Charge to split.
        runs: Runs that overlap the charge.
        bill: Bill for the charge.
        cuts: Times at which to split the charge. Times outside the charge have no effect.
    """
    own_end = _own_end(charge, runs)
    edges = {*cuts, own_end} if own_end else cuts
    split = list(slices(charge.start, bill.until, runs, edges))
    # Multiplying by the common multiple of all numbers of runs keeps every weight a whole number.
    even = lcm(*(max(1, len(piece.runs)) for piece in split))
    owned = [
        (part, owner, len(part.runs) or 1)
        for part in split
        for owner in _owners(charge, part.runs, part.start, own_end)
    ]
    weights = [part.microseconds * even // sharers for part, _, sharers in owned]
    amounts = zip(owned, apportion(bill.micro_usd, weights), apportion(bill.node_ms, weights), strict=True)
    shared = [
        Piece(owner, part.start, part.end, usd, node_ms, charge.end is None and part.end == bill.until)
        for (part, owner, _), usd, node_ms in amounts
    ]
    return shared + list(_without_share(charge, runs, shared))


def days(start: datetime, until: datetime) -> Iterator[datetime]:
    """Yield every midnight (UTC) between two times, without the times themselves."""
    midnight = start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + _DAY
    while midnight < until:
        yield midnight
        midnight += _DAY


def day_of(at: datetime) -> str:
    """Return the day (UTC) of a time, for example `2026-11-21`."""
    return at.astimezone(UTC).date().isoformat()


def week_of(at: datetime) -> str:
    """Return the Monday of the week (UTC) of a time, for example `2026-11-16`."""
    day: date = at.astimezone(UTC).date()
    return (day - timedelta(days=day.weekday())).isoformat()


def month_of(at: datetime) -> str:
    """Return the month (UTC) of a time, for example `2026-11`."""
    return day_of(at)[:7]


def _own_end(charge: Charge, runs: Sequence[RunInterval]) -> datetime | None:
    """Return the end of the run for which the charge was opened, if its cluster was kept after it.

    A cluster that is not kept is deleted before the end of its run is recorded, so its whole bill belongs to the run,
    including the rest of the minimum time.
    """
    own = next((run.ended_at for run in runs if run.run_id == charge.run_id), None)
    return own if own is not None and (charge.end is None or own < charge.end) else None


def _owners(charge: Charge, active: Sequence[RunInterval], start: datetime, own_end: datetime | None) -> list[Owner]:
    """Return the owners that share a slice equally."""
    if active:
        return [Owner(run.run_id, run.recipe or NO_VALUE, run.run_id) for run in active]
    if " " in charge.cluster:  # storage or an image, which have no runs
        return [Owner(charge.run_id or charge.cluster, charge.recipe or charge.cluster, charge.run_id or None)]
    if charge.run_id and (own_end is None or start < own_end):
        return [Owner(charge.run_id, charge.recipe or NO_VALUE, charge.run_id)]
    idle = f"{IDLE}{charge.cluster}"
    return [Owner(idle, idle, None, idle=True)]


def _without_share(charge: Charge, runs: Sequence[RunInterval], shared: Sequence[Piece]) -> Iterator[Piece]:
    """Yield an empty piece for each run that used the cluster but has no share, so that reports count the run."""
    known = {piece.owner.run_id for piece in shared}
    last = shared[-1].end - timedelta(microseconds=1)
    starts = {charge.run_id: charge.start} if charge.run_id else {}
    starts |= {run.run_id: min(max(run.started_at, charge.start), last) for run in runs}
    for run_id in sorted(starts.keys() - known):
        yield Piece(Owner(None, None, run_id), starts[run_id], starts[run_id], 0, 0, open_end=False)
