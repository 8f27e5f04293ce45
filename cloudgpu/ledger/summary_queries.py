"""Read reports from the cost summary: the database sums the closed entries, and only the others are billed here.

The statements are plain SQL that SQLite and PostgreSQL both understand, and need no database library: importing
SQLAlchemy takes longer than reading a report of a hundred thousand entries.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from cloudgpu.ledger.attribution import RunInterval
from cloudgpu.ledger.billing import Charge, ParsedPrices
from cloudgpu.ledger.billing import charges as charges_of
from cloudgpu.ledger.conversion import (
    SPENDING_COLUMNS,
    EntryAttempt,
    entry_from_rows,
    group_instances,
    group_part_ends,
    group_surcharges,
    run_from_row,
)
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.ledger.report import NO_VALUE, By, CostReport, KeySum, Sums, cost_report, sum_charges
from cloudgpu.ledger.times import to_text

Read = Callable[[str, Mapping[str, object]], Sequence[Sequence[Any]]]
"""Execute a statement with named parameters and return its rows."""

RULES = 1
"""Version of the rules by which a summary is computed, such as rounding and keys; increase it when one changes."""
_COUNTED = ("opened", "closed", "part_ended", "run_started", "run_ended")
COUNT_EVENTS = f"SELECT {' + '.join(f'(SELECT COUNT(*) FROM {table})' for table in _COUNTED)}"  # noqa: S608
"""Count the events that change a summary. Launches and surcharges do not: they belong to entries that are open."""
_STATE = "SELECT events, rules FROM cost_summary_state"

_KEY_COLUMNS: Mapping[By, str] = {
    "user": f"CASE WHEN owner = '' THEN '{NO_VALUE}' ELSE owner END",
    "team": f"CASE WHEN team = '' THEN '{NO_VALUE}' ELSE team END",
    "run": "run",
    "recipe": "recipe",
    "cluster": "cluster",
}
_BATCH = 500
_FEW_RUNS = 1000

_OPENED_COLUMNS = (*SPENDING_COLUMNS, "attempt")
_ENTRY_COLUMNS = (*_OPENED_COLUMNS, "launched_at", "closed_at")
_RUN_COLUMNS = "s.run_id, s.cluster, s.recipe, s.owner, s.team, s.started_at"


def is_complete(read: Read) -> bool:
    """Return True if the summary includes every event, so that it may be used."""
    ((events,),) = read(COUNT_EVENTS, {})
    return [tuple(row) for row in read(_STATE, {})] == [(events, RULES)]


def summarized_report(read: Read, *, by: By, since: datetime | None, now: datetime) -> CostReport:
    """Return the report that the events determine, using the summary, which must be complete.

    Args:
        read: Function that reads a consistent view of the ledger.
        by: What each row stands for.
        since: Count only costs from this time on.
        now: Time up to which open entries are charged.
    """
    entries = entries_of(read, _attempts_to_bill(read, since)).values()
    charges = [charge for entry in entries for charge in charges_of(entry)]
    sums = sum_charges(charges, runs_of(read, charges, now), by=by, since=since, now=now)
    _add_summary(read, sums, by, since)
    return cost_report(sums, by=by, since=since, now=now)


def _attempts_to_bill(read: Read, since: datetime | None) -> list[EntryAttempt]:
    """Return the attempts that are not in the summary, and those whose charges are cut by the start of the report."""
    query = "SELECT entry_id, attempt FROM cost_pending"
    if since is None:
        return [(entry_id, attempt) for entry_id, attempt in read(query, {})]
    cut = "SELECT entry_id, attempt FROM cost_summary WHERE until > :since AND starts_at < :since"
    return [(entry_id, attempt) for entry_id, attempt in read(f"{query} UNION {cut}", {"since": to_text(since)})]


def _add_summary(read: Read, sums: Sums, by: By, since: datetime | None) -> None:
    """Add the summary's charges, except those that start before the report does."""
    key, parameters = _KEY_COLUMNS[by], {"since": "" if since is None else to_text(since)}
    where = f"WHERE starts_at >= :since AND {key} IS NOT NULL"
    known = _known_runs(read, sums, key, where, parameters)
    flagged = 0
    for name, simulated, micro_usd, node_ms, flags, runs in read(
        f"SELECT {key}, simulated, SUM(micro_usd), SUM(node_ms), SUM(unpriced + estimated), "  # noqa: S608
        f"COUNT(DISTINCT run_id) FROM cost_summary {where} GROUP BY 1, 2",
        parameters,
    ):
        group = name, bool(simulated)
        if group not in sums:  # mostly: there may be a hundred thousand
            sums[group] = KeySum(int(micro_usd), int(node_ms), runs=frozenset(), summarized_runs=runs)
        else:
            total = sums[group]
            total.micro_usd += int(micro_usd)
            total.node_ms += int(node_ms)
            total.runs -= known[group]
            total.summarized_runs += runs
        flagged += flags
    if flagged:
        _add_flags(read, sums, key, where, parameters)


def _add_flags(read: Read, sums: Sums, key: str, where: str, parameters: Mapping[str, object]) -> None:
    """Count the unpriced and the estimated charges of every key, each charge once."""
    charges = (
        f"SELECT DISTINCT {key} AS name, simulated, entry_id, attempt, charge, unpriced, estimated "  # noqa: S608
        f"FROM cost_summary {where} AND unpriced + estimated > 0"
    )
    for name, simulated, unpriced, estimated in read(
        f"SELECT name, simulated, SUM(unpriced), SUM(estimated) FROM ({charges}) AS flagged GROUP BY 1, 2",  # noqa: S608
        parameters,
    ):
        total = sums[name, bool(simulated)]
        total.unpriced += int(unpriced)
        total.estimated += int(estimated)


def _known_runs(
    read: Read, sums: Sums, key: str, where: str, parameters: Mapping[str, object]
) -> Mapping[tuple[str, bool], set[str]]:
    """Return the runs that `sums` and the summary both count, by key, so that each is counted once."""
    known: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for names, batch in _batches({run_id for total in sums.values() for run_id in total.runs}):
        for name, simulated, run_id in read(
            f"SELECT DISTINCT {key}, simulated, run_id FROM cost_summary {where} AND run_id IN ({names})",  # noqa: S608
            {**parameters, **batch},
        ):
            known[name, bool(simulated)].add(run_id)
    return known


def entries_of(read: Read, attempts: Iterable[EntryAttempt]) -> Mapping[EntryAttempt, LedgerEntry]:
    """Return the entries of these attempts, without expiry extensions, which do not affect costs."""
    wanted = set(attempts)
    found: dict[EntryAttempt, LedgerEntry] = {}
    for names, batch in _batches({entry_id for entry_id, _ in wanted}):
        rows = [
            dict(zip(_ENTRY_COLUMNS, row, strict=True))
            for row in read(
                f"SELECT {', '.join(f'o.{column}' for column in _OPENED_COLUMNS)}, "  # noqa: S608
                "(SELECT MIN(l.launched_at) FROM launched l WHERE l.entry_id = o.entry_id AND l.attempt = o.attempt), "
                "c.closed_at FROM opened o "
                "LEFT JOIN closed c ON c.entry_id = o.entry_id AND c.attempt = o.attempt "
                f"WHERE o.entry_id IN ({names}) ORDER BY o.opened_at, o.entry_id, o.attempt",
                batch,
            )
        ]

        def of(table: str, columns: str, names: str = names, batch: Mapping[str, object] = batch) -> Any:  # noqa: ANN401
            # Unordered: costs depend only on the number of instances.
            query = f"SELECT entry_id, attempt, {columns} FROM {table} WHERE entry_id IN ({names})"  # noqa: S608
            return read(query, batch)

        instances = group_instances(of("launched", "instance_id"))
        beside = group_surcharges(of("beside", "kind, count, hourly_nano_usd, whole_hours"))
        parts = group_part_ends(of("part_ended", "part, ended_at, estimated"))
        for row in rows:
            attempt = row["entry_id"], row["attempt"]
            if attempt in wanted:
                found[attempt] = entry_from_rows(row, instances, beside, parts)
    return found


def runs_of(read: Read, charges: Iterable[Charge], now: datetime) -> list[RunInterval]:
    """Return the runs that overlap charges on the same cluster, and possibly others."""
    spans: dict[str, tuple[str, str]] = {}
    rates = ParsedPrices()
    for charge in charges:
        start, until = to_text(charge.start), to_text(rates.bill(charge, now).until)
        first, last = spans.get(charge.cluster, (start, until))
        spans[charge.cluster] = min(first, start), max(last, until)
    return [
        run_from_row(row)
        for cluster, (start, until) in spans.items()
        for row in _run_rows(read, {"cluster": cluster, "start": start, "until": until})
    ]


def _run_rows(read: Read, span: Mapping[str, object]) -> Iterable[Sequence[Any]]:
    ((on_cluster,),) = read(
        "SELECT COUNT(*) FROM run_started s WHERE s.cluster = :cluster AND s.started_at < :until", span
    )
    # Cluster names are reused: search a name with many runs by their ends. CROSS JOIN makes SQLite start there.
    tables = (
        "run_ended e CROSS JOIN run_started s" if on_cluster > _FEW_RUNS else "run_started s CROSS JOIN run_ended e"
    )
    yield from read(
        f"SELECT {_RUN_COLUMNS}, e.state, e.ended_at FROM {tables} WHERE e.run_id = s.run_id "  # noqa: S608
        "AND s.cluster = :cluster AND s.started_at < :until AND e.ended_at > :start ORDER BY s.started_at, s.run_id",
        span,
    )
    yield from read(
        f"SELECT {_RUN_COLUMNS}, NULL, NULL FROM run_started s LEFT JOIN run_ended e ON e.run_id = s.run_id "  # noqa: S608
        "WHERE s.cluster = :cluster AND s.started_at >= :start AND s.started_at < :until AND e.run_id IS NULL "
        "ORDER BY s.started_at, s.run_id",
        span,
    )


def _batches(values: Iterable[str]) -> Iterable[tuple[str, Mapping[str, object]]]:
    """Split values into batches of parameters, each with the list of names for an SQL `IN`."""
    ordered = iter(sorted(values))
    while batch := {f"v{number}": value for number, value in enumerate(islice(ordered, _BATCH))}:
        yield ", ".join(f":{name}" for name in batch), batch
