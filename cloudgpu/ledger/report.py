"""Sum costs by user, run, day and other keys, so that the rows always add up to the totals. Does no I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal

from cloudgpu.ledger.billing import (
    NO_VALUE,
    Bill,
    Charge,
    Owner,
    ParsedPrices,
    Piece,
    RunIndex,
    RunInterval,
    day_of,
    days,
    month_of,
    pieces,
    usd,
    week_of,
)

By = Literal["user", "team", "run", "recipe", "cluster", "gpu", "day", "week", "month"]
PERIODS: tuple[By, ...] = ("day", "week", "month")
"""Keys whose rows are in the order of time. Other rows are in the order of cost, most expensive first."""

_KEYS: Mapping[By, Callable[[Charge, Piece], str | None]] = {
    "user": lambda charge, _: charge.owner or NO_VALUE,
    "team": lambda charge, _: charge.team or NO_VALUE,
    "run": lambda _, piece: piece.owner.run,
    "recipe": lambda _, piece: piece.owner.recipe,
    "cluster": lambda charge, _: charge.cluster,
    "day": lambda _, piece: day_of(piece.start),
    "week": lambda _, piece: week_of(piece.start),
    "month": lambda _, piece: month_of(piece.start),
}
_NODE_HOUR = Decimal("0.000001")


def no_gpu(_instance_type: str) -> str:
    """Return the key of an instance type in a report by GPU if no catalog is known."""
    return NO_VALUE


@dataclass(frozen=True)
class ReportQuery:
    """What to report.

    Attributes:
        by: What each row represents, such as a user or a run.
        now: Time up to which open charges are counted.
        since: Count only costs from this time on; None counts all costs.
        until: Count only costs before this time; None counts all costs.
        limit: Largest number of rows, or None for all rows. Rows by period keep the latest, other rows the most
            expensive.
        gpu_of: Function that returns an instance type's key in a report by GPU.
    """

    by: By
    now: datetime
    since: datetime | None = None
    until: datetime | None = None
    limit: int | None = None
    gpu_of: Callable[[str], str] = no_gpu

    def covers(self, start: datetime, end: datetime) -> bool:
        """Return True if the report counts all costs between two times."""
        return (self.since is None or start >= self.since) and (self.until is None or end <= self.until)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a cost report.

    Attributes:
        key: User, team, run ID, recipe, cluster, GPU, day, month, or Monday of a week. In reports by run or recipe,
            `(idle) NAME` is the time of cluster NAME that belongs to no run or recipe, and storage and images appear as
            `storage NAME` and `image NAME`.
        simulated: Whether these are costs of the rehearsal cloud. A key with real and simulated costs has two rows.
        open_entries: Number of open entries whose costs continue to grow this row.
        runs: Number of distinct runs that the row covers.
        unpriced: Number of charges with a surcharge of unknown price, which no sum includes.
        estimated: Number of entries whose end is an upper bound, because the cloud reported no time.
        idle_usd: The part of `usd` for time in which nodes were running without a run.
        first_day: First day (UTC) with costs, for example `2026-11-21`.
        last_day: Last day (UTC) with costs.
    """

    key: str
    simulated: bool
    node_hours: Decimal
    usd: Decimal
    open_entries: int
    runs: int
    unpriced: int = 0
    estimated: int = 0
    idle_usd: Decimal = Decimal(0)
    first_day: str = ""
    last_day: str = ""


@dataclass(frozen=True)
class CostReport:
    """A cost report grouped by one key. Simulated costs are never added to real costs.

    Attributes:
        rows: All rows, or some of them if the caller limited their number; `ReportQuery.limit` says which.
        real_usd: Total of all real costs, including those of omitted rows.
        simulated_usd: Total of all simulated costs, including those of omitted rows.
        omitted: Number of rows that are not in `rows`.
    """

    by: By
    since: datetime | None
    now: datetime
    rows: tuple[ReportRow, ...]
    real_usd: Decimal
    simulated_usd: Decimal
    omitted: int = 0
    until: datetime | None = None


@dataclass(slots=True)
class KeySum:
    """The sums of one key. `summarized_runs` is the number of runs in the cost summary that are not in `runs`."""

    micro_usd: int = 0
    node_ms: int = 0
    idle_micro_usd: int = 0
    open_entries: int = 0
    unpriced: int = 0
    estimated: int = 0
    runs: set[str] | frozenset[str] = field(default_factory=set)
    summarized_runs: int = 0
    first_day: str = ""
    last_day: str = ""

    def add_days(self, first: str, last: str) -> None:
        """Extend the days of this sum."""
        self.first_day = min(self.first_day or first, first)
        self.last_day = max(self.last_day, last)


Sums = dict[tuple[str, bool], KeySum]
"""Sums by key, and by whether the costs are simulated."""


@dataclass
class Omitted:
    """The number and the total costs of report rows that are not in the sums by key.

    `micro_usd` contains the real costs under the key False and the simulated costs under the key True.
    """

    rows: int = 0
    micro_usd: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})


def report(charges: Iterable[Charge], runs: Iterable[RunInterval], query: ReportQuery) -> CostReport:
    """Sum charges into a report, attributed to the runs."""
    return cost_report(sum_charges(charges, runs, query), query)


def sum_charges(charges: Iterable[Charge], runs: Iterable[RunInterval], query: ReportQuery) -> Sums:
    """Sum charges by key."""
    sums: Sums = defaultdict(KeySum)
    rates, index = ParsedPrices(), RunIndex(runs)
    for charge in charges:
        bill = rates.bill(charge, query.now)
        if (query.since is None or bill.until > query.since) and (query.until is None or charge.start < query.until):
            _add(sums, charge, _counted(charge, index.overlapping(charge, bill.until), bill, query), query)
    return sums


def cost_report(sums: Sums, query: ReportQuery, omitted: Omitted | None = None) -> CostReport:
    """Build a report from the sums by key and the costs of omitted rows."""
    omitted = omitted or Omitted()
    if query.by in PERIODS:
        ordered = sorted(sums.items(), key=lambda item: item[0])
        ordered = ordered[max(0, len(ordered) - query.limit) :] if query.limit is not None else ordered
    else:
        ordered = sorted(sums.items(), key=lambda item: (-item[1].micro_usd, item[0]))[: query.limit]
    rows = tuple(_row(key, simulated, total) for (key, simulated), total in ordered)
    real, simulated = (_total(sums, omitted, simulated=kind) for kind in (False, True))
    left = omitted.rows + len(sums) - len(rows)
    return CostReport(query.by, query.since, query.now, rows, real, simulated, omitted=left, until=query.until)


@dataclass(slots=True)
class Share:
    """One owner's share in the bill for a closed charge on one day."""

    owner: Owner
    day: str
    week: str
    micro_usd: int = 0
    node_ms: int = 0


def shares(charge: Charge, runs: Sequence[RunInterval], bill: Bill) -> list[Share]:
    """Split the bill for a closed charge among runs, idle time and days, as `report` does for all of its costs.

    Args:
        charge: Closed charge.
        runs: Runs that overlap the charge.
        bill: Bill for the charge.
    """
    sums: dict[tuple[Owner, str], Share] = {}
    for piece in pieces(charge, runs, bill, tuple(days(charge.start, bill.until))):
        day = day_of(piece.start)
        share = sums.setdefault((piece.owner, day), Share(piece.owner, day, week_of(piece.start)))
        share.micro_usd += piece.micro_usd
        share.node_ms += piece.node_ms
    return list(sums.values())


def _counted(charge: Charge, runs: Sequence[RunInterval], bill: Bill, query: ReportQuery) -> list[Piece]:
    """Return the pieces of a charge that the report counts."""
    cuts = [*days(charge.start, bill.until), *(at for at in (query.since, query.until) if at is not None)]
    return [piece for piece in pieces(charge, runs, bill, cuts) if query.covers(piece.start, piece.end)]


def _add(sums: Sums, charge: Charge, counted: Sequence[Piece], query: ReportQuery) -> None:
    keys: set[str] = set()
    open_keys: set[str] = set()
    for piece in counted:
        key = query.gpu_of(charge.instance_type) if query.by == "gpu" else _KEYS[query.by](charge, piece)
        if key is None:
            continue
        keys.add(key)
        if piece.open_end:
            open_keys.add(key)
        total = sums[key, charge.simulated]
        total.micro_usd += piece.micro_usd
        total.node_ms += piece.node_ms
        total.idle_micro_usd += piece.micro_usd if piece.owner.idle else 0
        total.runs |= {piece.owner.run_id} if piece.owner.run_id else set()
        day = day_of(piece.start)
        total.add_days(day, day)
    for key in keys:
        total = sums[key, charge.simulated]
        total.open_entries += key in open_keys
        total.unpriced += charge.unpriced and not charge.free
        total.estimated += charge.estimated and not charge.free


def _row(key: str, simulated: bool, total: KeySum) -> ReportRow:  # noqa: FBT001
    return ReportRow(
        key=key,
        simulated=simulated,
        node_hours=(Decimal(total.node_ms) / 3_600_000).quantize(_NODE_HOUR),
        usd=usd(total.micro_usd),
        open_entries=total.open_entries,
        runs=len(total.runs) + total.summarized_runs,
        unpriced=total.unpriced,
        estimated=total.estimated,
        idle_usd=usd(total.idle_micro_usd),
        first_day=total.first_day,
        last_day=total.last_day,
    )


def _total(sums: Sums, omitted: Omitted, *, simulated: bool) -> Decimal:
    summed = sum(total.micro_usd for (_, is_simulated), total in sums.items() if is_simulated is simulated)
    return usd(summed + omitted.micro_usd[simulated])
