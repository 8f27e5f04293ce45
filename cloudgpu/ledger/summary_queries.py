"""Create reports from the cost summary, and read an SQLite ledger without a database library.

The database sums the closed entries. This module bills only open entries, and charges that the start or the end of
the report cuts. The statements are plain SQL for both SQLite and PostgreSQL and need no database library, because
importing SQLAlchemy takes longer than reading a report of a hundred thousand entries.

If this module cannot read the ledger, the caller uses `Ledger`, which creates, updates or copies the ledger and
explains errors.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.ledger.billing import NO_VALUE, Charge, ParsedPrices, RunInterval
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
from cloudgpu.ledger.entry import VERSION, LedgerEntry, to_text
from cloudgpu.ledger.report import PERIODS, By, CostReport, KeySum, Omitted, ReportQuery, Sums, cost_report, sum_charges

Read = Callable[[str, Mapping[str, object]], Sequence[Sequence[Any]]]
"""Function that executes a statement with named parameters and returns the rows."""

RULES = 2
"""Version of the rules for computing a summary, such as rounding and keys. Increase it when a rule changes."""
_COUNTED = ("opened", "closed", "part_ended", "run_started", "run_ended")
COUNT_EVENTS = f"SELECT {' + '.join(f'(SELECT COUNT(*) FROM {table})' for table in _COUNTED)}"  # noqa: S608
"""Counts the events that a summary includes. Launches, extensions and surcharges are not counted, because they are
recorded only for open entries, which a summary does not contain."""
_STATE = "SELECT events, rules FROM cost_summary_state"

_KEY_COLUMNS: Mapping[By, str] = {
    "user": f"CASE WHEN owner = '' THEN '{NO_VALUE}' ELSE owner END",
    "team": f"CASE WHEN team = '' THEN '{NO_VALUE}' ELSE team END",
    "run": "run",
    "recipe": "recipe",
    "cluster": "cluster",
    "day": "day",
    "week": "week",
    "month": "SUBSTR(day, 1, 7)",
}
_ONE_RUN = "MAX(CASE WHEN run_id IS NULL THEN 0 ELSE 1 END)"
"""Number of runs of a row by run, which is one run, or idle time. Faster than counting distinct runs."""
_BATCH = 500
_FEW_RUNS = 1000

_OPENED_COLUMNS = (*SPENDING_COLUMNS, "attempt")
_ENTRY_COLUMNS = (*_OPENED_COLUMNS, "launched_at", "closed_at")
_RUN_COLUMNS = "s.run_id, s.cluster, s.recipe, s.owner, s.team, s.started_at"
BUSY_TIMEOUT_S = 30.0
"""Maximum time in seconds to wait while another process has the ledger locked."""
SQLITE_PREFIX = "sqlite:///"
"""Prefix of the URL of an SQLite ledger. The absolute path of the file follows."""
_T = TypeVar("_T")


def is_complete(read: Read) -> bool:
    """Return True if the summary is usable: it includes every event and was computed by the current rules."""
    ((events,),) = read(COUNT_EVENTS, {})
    return [tuple(row) for row in read(_STATE, {})] == [(events, RULES)]


@dataclass(frozen=True)
class _Selection:
    """The part of the summary that a report counts: SQL for a row's key, SQL conditions, and their parameters."""

    key: str
    where: str
    parameters: Mapping[str, object]


def summarized_report(read: Read, query: ReportQuery) -> CostReport:
    """Return a report based on the summary, which must be complete. A report computed from the events is identical.

    Args:
        read: Function that reads a consistent view of the ledger.
        query: What to report.
    """
    charges = _charges_to_bill(read, query)
    sums = sum_charges(charges, runs_of(read, charges, query.now), query)
    omitted = _add_summary(read, sums, query)
    return cost_report(sums, query, omitted)


def _charges_to_bill(read: Read, query: ReportQuery) -> list[Charge]:
    """Return the charges of attempts that are not in the summary, and the charges that the report counts in part."""
    pending = {(entry_id, attempt) for entry_id, attempt in read("SELECT entry_id, attempt FROM cost_pending", {})}
    cut: set[EntryAttempt] = set()
    for at in (query.since, query.until):
        if at is not None:
            statement = "SELECT entry_id, attempt FROM cost_summary WHERE until > :at AND starts_at < :at"
            cut.update((entry_id, attempt) for entry_id, attempt in read(statement, {"at": to_text(at)}))
    rates = ParsedPrices()
    return [
        charge
        for attempt, entry in entries_of(read, pending | cut).items()
        for charge in charges_of(entry)
        # The parts of a cut entry may end apart: `_add_summary` adds those that the report counts as a whole.
        if attempt in pending or not query.covers(charge.start, rates.bill(charge, query.now).until)
    ]


def _selection(read: Read, query: ReportQuery) -> _Selection:
    if query.by == "gpu":
        types = {
            f"type{i}": name for i, (name,) in enumerate(read("SELECT DISTINCT instance_type FROM cost_summary", {}))
        }
        gpus = {f"gpu_of_{parameter}": query.gpu_of(name) for parameter, name in types.items()}
        cases = " ".join(f"WHEN :{parameter} THEN :gpu_of_{parameter}" for parameter in types)
        key = f"CASE instance_type {cases} ELSE '' END" if types else "instance_type"
        parameters: dict[str, object] = {**types, **gpus}
    else:
        key, parameters = _KEY_COLUMNS[query.by], {}
    conditions = [f"{key} IS NOT NULL"] if query.by in ("run", "recipe") else []
    for name, condition, at in (
        ("since", "starts_at >= :since", query.since),
        ("until", "until <= :until", query.until),
    ):
        if at is not None:
            conditions.append(condition)
            parameters[name] = to_text(at)
    return _Selection(key, f"WHERE {' AND '.join(conditions or ['1 = 1'])}", parameters)


def _add_summary(read: Read, sums: Sums, query: ReportQuery) -> Omitted:
    """Add the summary's charges to the sums, except those that the report does not count as a whole.

    With a limit, add only the keys that may be shown and the keys that already have a sum. Return what was omitted.
    """
    chosen = _selection(read, query)
    known = _known_runs(read, sums, chosen)
    groups, totals = _groups(read, sums, query, chosen)
    flagged = 0
    for name, simulated, micro_usd, node_ms, idle, first_day, last_day, flags, runs in groups:
        group = name, bool(simulated)
        if group not in sums:  # the usual case; must be fast for a hundred thousand groups
            sums[group] = KeySum(
                int(micro_usd),
                int(node_ms),
                int(idle),
                runs=frozenset(),
                summarized_runs=runs,
                first_day=first_day,
                last_day=last_day,
            )
        else:
            total = sums[group]
            total.micro_usd += int(micro_usd)
            total.node_ms += int(node_ms)
            total.idle_micro_usd += int(idle)
            total.runs -= known[group]
            total.summarized_runs += runs
            total.add_days(first_day, last_day)
        flagged += flags
    if flagged:
        _add_flags(read, sums, chosen)
    return _omitted(groups, totals)


def _groups(
    read: Read, sums: Sums, query: ReportQuery, chosen: _Selection
) -> tuple[Sequence[Sequence[Any]], Sequence[Sequence[Any]]]:
    """Return the summary's sums by key and, if the limit may omit keys, the totals of all keys.

    With a limit, return the sums of the keys that come first and of the keys in `sums`, whose rank also depends on the
    charges that are not in the summary.
    """
    runs = _ONE_RUN if query.by == "run" else "COUNT(DISTINCT run_id)"
    columns = (
        f"SELECT {chosen.key} AS name, simulated, SUM(micro_usd) AS micro_usd, SUM(node_ms) AS node_ms, "  # noqa: S608
        "SUM(idle_micro_usd) AS idle_micro_usd, MIN(day) AS first_day, MAX(day) AS last_day, "
        f"SUM(unpriced + estimated) AS flags, {runs} AS runs FROM cost_summary {chosen.where}"
    )
    names = sorted({name for name, _ in sums})
    if query.limit is None or len(names) > _BATCH:
        return read(f"{columns} GROUP BY 1, 2", chosen.parameters), ()
    batch = {f"name{number}": name for number, name in enumerate(names)}
    listed = ", ".join(f":{parameter}" for parameter in batch)
    inside, outside = (f"name IN ({listed})", f"name NOT IN ({listed})") if names else ("FALSE", "TRUE")
    order = "name DESC, simulated DESC" if query.by in PERIODS else "micro_usd DESC, name, simulated"
    if query.by == "run":
        # Every run is a group: only those that are shown are summed in full.
        ranked = (
            f"SELECT run AS name, simulated, SUM(micro_usd) AS micro_usd FROM cost_summary {chosen.where} GROUP BY 1, 2"  # noqa: S608
        )
        shown = (
            f"{columns} AND (run IN (SELECT name FROM (SELECT * FROM grouped WHERE {outside} ORDER BY {order} "  # noqa: S608
            f"LIMIT :limit) AS most_expensive) OR {f'run IN ({listed})' if names else 'FALSE'}) GROUP BY 1, 2"
        )
    else:
        ranked = f"{columns} GROUP BY 1, 2"
        shown = (
            f"SELECT * FROM (SELECT * FROM grouped WHERE {outside} ORDER BY {order} LIMIT :limit) "  # noqa: S608
            f"AS most_expensive UNION ALL SELECT * FROM grouped WHERE {inside}"
        )
    # One statement, so that the database groups once. The rows without a name are the totals.
    rows = read(
        f"WITH grouped AS ({ranked}) {shown} "  # noqa: S608
        "UNION ALL SELECT NULL, simulated, SUM(micro_usd), 0, 0, '', '', 0, COUNT(*) FROM grouped GROUP BY simulated",
        {**chosen.parameters, **batch, "limit": query.limit},
    )
    return [row for row in rows if row[0] is not None], [row for row in rows if row[0] is None]


def _omitted(groups: Sequence[Sequence[Any]], totals: Sequence[Sequence[Any]]) -> Omitted:
    """Return what the totals contain beyond the groups."""
    omitted = Omitted()
    if totals:
        omitted.rows = sum(rows for *_, rows in totals) - len(groups)
        for sign, counted in ((1, totals), (-1, groups)):
            for _, simulated, micro_usd, *_ in counted:
                omitted.micro_usd[bool(simulated)] += sign * int(micro_usd)
    return omitted


def _add_flags(read: Read, sums: Sums, chosen: _Selection) -> None:
    """Add the numbers of unpriced and estimated charges to each key. Count each charge once."""
    charges = (
        f"SELECT DISTINCT {chosen.key} AS name, simulated, entry_id, attempt, charge, unpriced, estimated "  # noqa: S608
        f"FROM cost_summary {chosen.where} AND unpriced + estimated > 0"
    )
    for name, simulated, unpriced, estimated in read(
        f"SELECT name, simulated, SUM(unpriced), SUM(estimated) FROM ({charges}) AS flagged GROUP BY 1, 2",  # noqa: S608
        chosen.parameters,
    ):
        if (total := sums.get((name, bool(simulated)))) is not None:
            total.unpriced += int(unpriced)
            total.estimated += int(estimated)


def _known_runs(read: Read, sums: Sums, chosen: _Selection) -> Mapping[tuple[str, bool], set[str]]:
    """Return the runs that both `sums` and the summary contain, by key, so that no run is counted twice."""
    known: dict[tuple[str, bool], set[str]] = defaultdict(set)
    for names, batch in _batches({run_id for total in sums.values() for run_id in total.runs}):
        for name, simulated, run_id in read(
            f"SELECT DISTINCT {chosen.key}, simulated, run_id FROM cost_summary {chosen.where} AND run_id IN ({names})",  # noqa: S608
            {**chosen.parameters, **batch},
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
        surcharges = group_surcharges(of("beside", "kind, count, hourly_nano_usd, whole_hours"))
        parts = group_part_ends(of("part_ended", "part, ended_at, estimated"))
        for row in rows:
            attempt = row["entry_id"], row["attempt"]
            if attempt in wanted:
                found[attempt] = entry_from_rows(row, instances, surcharges, parts)
    return found


def runs_of(read: Read, charges: Iterable[Charge], now: datetime) -> list[RunInterval]:
    """Return every run that overlaps a charge of its cluster. The result may also contain other runs."""
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
    # If a reused name has many runs, search by end time first. CROSS JOIN fixes SQLite's join order.
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
    """Yield values in batches: the parameter names for an SQL `IN`, and the parameters by name."""
    ordered = iter(sorted(values))
    while batch := {f"v{number}": value for number, value in enumerate(islice(ordered, _BATCH))}:
        yield ", ".join(f":{name}" for name in batch), batch


def sqlite_report(url: str, query: ReportQuery) -> CostReport | None:
    """Return the same report as `Ledger.query`, or None if this module cannot create it.

    None means that the ledger is not an SQLite file in the current format, cannot be read, or has no complete summary.
    """

    def work(read: Read) -> CostReport | None:
        return summarized_report(read, query) if is_complete(read) else None

    return _read(url, work)


def sqlite_entries(url: str, token: str) -> tuple[LedgerEntry, ...] | None:
    """Return the entries of one cluster or storage, in the order in which they were opened.

    Return None if the ledger is not an SQLite file in the current format or cannot be read. Expiry extensions are
    omitted, because they do not affect costs.

    Args:
        url: URL of the ledger.
        token: Token of the cluster or storage. The IDs of its entries start with the token.
    """
    return _read(url, lambda read: _entries(read, token))


def _entries(read: Read, token: str) -> tuple[LedgerEntry, ...]:
    query = "SELECT entry_id, attempt FROM opened WHERE entry_id >= :first AND entry_id < :after"
    attempts = read(query, {"first": f"{token}/", "after": f"{token}0"})
    return tuple(entries_of(read, ((entry_id, attempt) for entry_id, attempt in attempts)).values())


def _read(url: str, work: Callable[[Read], _T | None]) -> _T | None:
    """Return the result of `work` on the ledger, or None if the ledger has another format or cannot be read."""
    path = Path(url.removeprefix(SQLITE_PREFIX))
    if not url.startswith(SQLITE_PREFIX) or not path.is_absolute():
        return None
    try:
        # The mode `rw` never creates the ledger but, unlike `ro`, may create the index of a write-ahead log.
        address = f"{path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")  # one consistent view for all statements

            def read(statement: str, parameters: Mapping[str, object]) -> Sequence[Sequence[Any]]:
                return connection.execute(statement, dict(parameters)).fetchall()

            return work(read) if read("SELECT MAX(version) FROM cloudgpu_ledger", {}) == [(VERSION,)] else None
    except sqlite3.Error:
        return None
