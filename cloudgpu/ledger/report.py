"""Sum costs by user, team, run, recipe or cluster, so that the rows always add up to the totals. No I/O."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from math import lcm
from operator import attrgetter
from typing import Literal

from cloudgpu.ledger.attribution import RunIndex, RunInterval, Slice, slices
from cloudgpu.ledger.billing import Bill, Charge, ParsedPrices, apportion, usd

By = Literal["user", "team", "run", "recipe", "cluster"]

NO_VALUE = "(none)"
"""Key of costs without an owner, team or recipe."""
_OF_RUNS: tuple[By, By] = ("run", "recipe")
_KEYS: Mapping[By, Callable[[Charge], str]] = {
    "user": attrgetter("owner"),
    "team": attrgetter("team"),
    "run": attrgetter("run_id"),
    "recipe": attrgetter("recipe"),
    "cluster": attrgetter("cluster"),
}
_NODE_HOUR = Decimal("0.000001")


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a cost report.

    Attributes:
        key: User, team, run ID, recipe or cluster. In reports by run or recipe, `(idle) NAME` is the time of cluster
            NAME that no run used, and storage and images appear as `storage NAME` and `image NAME`.
        simulated: Whether these are costs of the rehearsal cloud. A key with real and simulated costs has two rows.
        open_entries: Number of entries that cost money now, or may do so.
        runs: Number of runs.
        unpriced: Number of entries with a surcharge of unknown price, which is not in any sum.
        estimated: Number of entries whose end is an upper bound, because the cloud reported no time.
    """

    key: str
    simulated: bool
    node_hours: Decimal
    usd: Decimal
    open_entries: int
    runs: int
    unpriced: int = 0
    estimated: int = 0


@dataclass(frozen=True)
class CostReport:
    """A cost report grouped by one key, most expensive row first. Simulated costs are never added to real costs."""

    by: By
    since: datetime | None
    now: datetime
    rows: tuple[ReportRow, ...]
    real_usd: Decimal
    simulated_usd: Decimal


@dataclass(slots=True)
class KeySum:
    """The sums of one key. `summarized_runs` is the number of runs that are not in `runs`."""

    micro_usd: int = 0
    node_ms: int = 0
    open_entries: int = 0
    unpriced: int = 0
    estimated: int = 0
    runs: set[str] | frozenset[str] = field(default_factory=set)
    summarized_runs: int = 0


Sums = dict[tuple[str, bool], KeySum]
"""Sums by key, and by whether the costs are simulated."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a charge that belongs to one row. `counted` is False for costs before the start of the report."""

    key: str
    weight: int
    runs: frozenset[str]
    counted: bool = True


def report(
    charges: Iterable[Charge], runs: Iterable[RunInterval], *, by: By, since: datetime | None, now: datetime
) -> CostReport:
    """Sum charges into a report.

    Args:
        charges: Charges to sum.
        runs: Runs to which the charges are attributed.
        by: What each row stands for, such as a user or a run.
        since: Count only costs from this time on; None counts all costs.
        now: Time up to which open charges are counted.
    """
    return cost_report(sum_charges(charges, runs, by=by, since=since, now=now), by=by, since=since, now=now)


def sum_charges(
    charges: Iterable[Charge], runs: Iterable[RunInterval], *, by: By, since: datetime | None, now: datetime
) -> Sums:
    """Sum charges by key. The arguments are those of `report`."""
    sums: Sums = defaultdict(KeySum)
    rates, index = ParsedPrices(), RunIndex(runs)
    for charge in charges:
        bill = rates.bill(charge, now)
        if since is None or bill.until > since:
            parts = _parts(charge, index.overlapping(charge, bill.until), by, since, bill.until)
            _add(sums, charge, parts, bill)
    return sums


def cost_report(sums: Sums, *, by: By, since: datetime | None, now: datetime) -> CostReport:
    """Build a report from its sums."""
    by_cost = sorted(sums.items(), key=lambda item: (-item[1].micro_usd, item[0]))
    rows = tuple(_row(key, simulated, total) for (key, simulated), total in by_cost)
    return CostReport(by, since, now, rows, real_usd=_total(sums, "real"), simulated_usd=_total(sums, "simulated"))


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one run in the bill for a closed charge, with the run's key in reports by run and by recipe.

    Attributes:
        run: Key in reports by run, or None if the run used the cluster but has no share in the costs.
        recipe: Key in reports by recipe, or None like `run`.
        run_id: ID of the run, or None for time that belongs to no run.
    """

    run: str | None
    recipe: str | None
    run_id: str | None
    micro_usd: int
    node_ms: int


def shares(charge: Charge, runs: Sequence[RunInterval], bill: Bill) -> list[Share]:
    """Split the bill for a closed charge as `report` does without a start time, for reports by every key.

    Args:
        charge: Closed charge.
        runs: Runs that overlap the charge.
        bill: Bill for the charge.
    """
    by_run, by_recipe = (_parts(charge, runs, by, None, bill.until) for by in _OF_RUNS)
    weights = [part.weight for part in by_run]
    amounts = zip(apportion(bill.micro_usd, weights), apportion(bill.node_ms, weights), strict=True)
    sums: dict[tuple[str, str, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for part, recipe, (micro_usd, node_ms) in zip(by_run, by_recipe, amounts, strict=True):
        total = sums[part.key, recipe.key, next(iter(part.runs), None)]
        total[0] += micro_usd
        total[1] += node_ms
    shared = [Share(run, recipe, run_id, *total) for (run, recipe, run_id), total in sums.items()]
    others = _run_ids(charge, runs) - {share.run_id for share in shared}
    return shared + [Share(None, None, run_id, 0, 0) for run_id in sorted(others)]


def _parts(charge: Charge, runs: Sequence[RunInterval], by: By, since: datetime | None, until: datetime) -> list[_Part]:
    cut = since if since and since > charge.start else None
    shared = by in _OF_RUNS and any(run.run_id != charge.run_id for run in runs)
    if cut is None and not shared:
        return [_Part(key, 1, ids) for key, ids in _keys(charge, runs[:1] if by in _OF_RUNS else runs, by)]
    pieces = list(slices(charge.start, until, runs, cut))
    # A slice that k runs share is split into k equal parts; the common multiple keeps every weight a whole number.
    even = lcm(*(max(1, len(piece.runs)) for piece in pieces))
    return list(_cut(charge, pieces, by, cut, even))


def _cut(charge: Charge, pieces: Iterable[Slice], by: By, cut: datetime | None, even: int) -> Iterator[_Part]:
    for piece in pieces:
        keys = _keys(charge, piece.runs, by)
        for key, ids in keys:
            yield _Part(key, piece.microseconds * even // len(keys), ids, counted=cut is None or piece.start >= cut)


def _keys(charge: Charge, runs: Sequence[RunInterval], by: By) -> list[tuple[str, frozenset[str]]]:
    """Return the keys among which a slice is split equally, and the runs that count toward each key."""
    if by in _OF_RUNS and runs:
        return [((run.run_id if by == "run" else run.recipe or NO_VALUE), frozenset({run.run_id})) for run in runs]
    return [(_unattributed_key(charge, by), _run_ids(charge, runs))]


def _unattributed_key(charge: Charge, by: By) -> str:
    """Return the key for time that no recorded run used."""
    # Idle time includes resources that outlive the nodes. A name with a space belongs to storage or an image.
    unused = charge.cluster if " " in charge.cluster else f"(idle) {charge.cluster}"
    return _KEYS[by](charge) or (unused if by in _OF_RUNS else NO_VALUE)


def _run_ids(charge: Charge, runs: Iterable[RunInterval]) -> frozenset[str]:
    return frozenset(run.run_id for run in runs) | ({charge.run_id} if charge.run_id else set())


def _add(sums: Sums, charge: Charge, parts: Sequence[_Part], bill: Bill) -> None:
    weights = [part.weight for part in parts]
    shares = zip(parts, apportion(bill.micro_usd, weights), apportion(bill.node_ms, weights), strict=True)
    for part, micro_usd, node_ms in shares:
        if part.counted:
            total = sums[part.key, charge.simulated]
            total.micro_usd += micro_usd
            total.node_ms += node_ms
            total.runs |= part.runs
    for key in {part.key for part in parts if part.counted}:
        sums[key, charge.simulated].open_entries += charge.end is None
        sums[key, charge.simulated].unpriced += charge.unpriced and not charge.free
        sums[key, charge.simulated].estimated += charge.estimated and not charge.free


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
    )


def _total(sums: Sums, kind: Literal["real", "simulated"]) -> Decimal:
    return usd(sum(total.micro_usd for (_, simulated), total in sums.items() if simulated is (kind == "simulated")))
