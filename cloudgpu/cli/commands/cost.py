"""`cloudgpu cost`: report costs from the ledger, with separate totals for real and simulated costs."""

import csv
import io
import re
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import typer

from cloudgpu import bounds
from cloudgpu.backends.billing.cluster_billing import gap_error
from cloudgpu.cli.context import CliContext, command_context
from cloudgpu.cli.options import Json, integer_parser
from cloudgpu.cli.terminal.number_format import format_time, money
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import display_width, wrap_lines
from cloudgpu.clock import utc_text
from cloudgpu.errors import UsageError
from cloudgpu.ledger.billing import NO_VALUE
from cloudgpu.ledger.report import PERIODS, By, CostReport, ReportQuery, ReportRow

ROWS_SHOWN = 100
"""Default maximum number of rows in the table."""
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BAR = 24
"""Maximum width of a bar, in columns."""
_LEAST_BAR = 8
_BAR_FROM = 60
"""Minimum width of a terminal for which columns are hidden to make room for bars."""
_FROM = Column("from", priority=4, narrow="hide")
_TO = Column("to", priority=4, narrow="hide")
_NODE_HOURS = Column("node hours", right=True, priority=5, narrow="hide")
_COST = Column("cost", right=True)
_IDLE = Column("idle", right=True, priority=3, narrow="hide")
_MARKS = Column(priority=2, label="")


def read_period(since: str | None, until: str | None, now: datetime) -> tuple[datetime | None, datetime | None]:
    """Parse the start and the end of a report: dates such as `2026-11-01`, times, or ages such as `7d` before `now`.

    The end is exclusive, but a date as the end includes that day.
    """
    start, end = _moment("--since", since, now), _moment("--until", until, now)
    if end is not None and until is not None and _DATE.fullmatch(until):
        end += timedelta(days=1)
    if start is not None and end is not None and start >= end:
        raise UsageError(f"--since {since} is not before --until {until}", hint="swap them, or omit one of them")
    return start, end


def _moment(option: str, text: str | None, now: datetime) -> datetime | None:
    if text is None:
        return None
    try:
        return bounds.parse_time_or_age(text, now)
    except ValueError:
        message = f"{option} {text}: expected a date such as 2026-11-01, or an age such as 7d, 12h or 30m"
        hint = f"an age needs a unit, and a date a year from 2000 on: {option} 7d, or {option} 2026-11-01"
        raise UsageError(message, hint=hint) from None


def report_json(report: CostReport) -> dict[str, Any]:
    """Return the documented output of `cost --json`, with amounts as strings."""
    return {
        "by": report.by,
        "since": report.since and utc_text(report.since),
        "until": report.until and utc_text(report.until),
        "rows": [_record(report.by, row) for row in report.rows],
        "omitted_rows": report.omitted,
        "real_usd": str(report.real_usd),
        "simulated_usd": str(report.simulated_usd),
    }


def report_csv(report: CostReport) -> str:
    """Return the output of `cost --csv`: a header, then the rows of `cost --json` with the same fields."""
    text = io.StringIO()
    names = list(_record(report.by, ReportRow("", False, Decimal(0), Decimal(0), 0, 0)))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in report.rows:
        record = _record(report.by, row)
        writer.writerow(record | {"simulated": str(row.simulated).lower()})
    return text.getvalue()


def _record(by: str, row: ReportRow) -> dict[str, Any]:
    return {
        by: row.key,
        "simulated": row.simulated,
        "node_hours": str(row.node_hours),
        "usd": str(row.usd),
        "idle_usd": str(row.idle_usd),
        "open_entries": row.open_entries,
        "runs": row.runs,
        "unpriced_entries": row.unpriced,
        "estimated_entries": row.estimated,
        "first_day": row.first_day,
        "last_day": row.last_day,
    }


def report_lines(report: CostReport, width: int | None = None) -> list[str]:
    """Return the table of costs, and separate totals for real and simulated costs.

    Args:
        report: Report to show.
        width: Width of the terminal in columns, or None if it is unlimited.
    """
    if not report.rows:
        return [f"nothing was spent{_period(report)}"]
    table = _table(report, width).lines(width)
    if report.omitted:
        kind = "earlier" if report.by in PERIODS else "cheaper"
        rows_left = f"1 {kind} row" if report.omitted == 1 else f"{report.omitted:,} {kind} rows"
        table.append(f"{rows_left} not shown; to show all rows: --limit 0")
    totals = f"real {money(report.real_usd)}, simulated {money(report.simulated_usd)}{_period(report)}"
    return [*table, "", *wrap_lines([totals], width)]


def _period(report: CostReport) -> str:
    since = "" if report.since is None else f" since {format_time(report.since)}"
    return since + ("" if report.until is None else f" until {format_time(report.until)}")


def _table(report: CostReport, width: int | None) -> Table:
    """Return the rows as a table. The bars take the space that the other columns leave."""
    rows = report.rows
    columns = {Column(report.by, whole=True): [row.key for row in rows]}
    if report.by not in PERIODS:
        columns[_FROM] = [row.first_day for row in rows]
        columns[_TO] = [row.last_day if row.last_day != row.first_day else "" for row in rows]
    columns[_NODE_HOURS] = [f"{row.node_hours:.3f}" for row in rows]
    columns[_COST] = [money(row.usd) for row in rows]
    if report.by not in ("run", "recipe"):
        columns[_IDLE] = [money(row.idle_usd) if row.idle_usd else "" for row in rows]
    columns[_MARKS] = [_marks(row) for row in rows]
    columns = {column: cells for column, cells in columns.items() if any(cells)}
    plain = Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))
    if width is None:
        bar = _BAR
    else:
        left = width - max(map(display_width, plain.lines())) - 2
        bar = min(_BAR, left) if left >= _LEAST_BAR else _LEAST_BAR if width >= _BAR_FROM else 0
    if not bar:
        return plain
    most = max(row.usd for row in rows) or Decimal(1)
    bars = ["#" * max(int(row.usd > 0), round(bar * row.usd / most)) for row in rows]
    return Table((*plain.columns, Column()), [(*row, bar) for row, bar in zip(plain.rows, bars, strict=True)])


def _marks(row: ReportRow) -> str:
    words = {"simulated": row.simulated, "still accruing": row.open_entries, "excludes unknown prices": row.unpriced}
    words["estimated, at most"] = row.estimated
    return ", ".join(word for word, on in words.items() if on)


def cost(
    by: Annotated[By, typer.Option("--by", help="Group costs by this key. Days, weeks and months are in UTC.")] = "run",
    since: Annotated[str | None, typer.Option("--since", help="Start date (2026-11-01) or age (7d, 12h).")] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Last date (2026-11-30, inclusive), time, or age (7d, 12h).")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            parser=integer_parser(),
            help="Show at most this many rows (0: all): the latest ones if grouped by day, week or month, otherwise "
            "the most expensive ones. Default: 100, or all with --json and --csv.",
        ),
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")] = False,
    json: Json = False,
) -> None:
    """Show what was spent, when, by whom and on what.

    Reads the ledger and makes no cloud calls. Simulated costs are marked and never added to real costs. Exits 13 if
    this machine's records contain an instance or storage that is missing from the ledger.
    """
    if csv and json:
        raise UsageError("--csv and --json are mutually exclusive", hint="omit one of them")
    context = command_context(json=json)
    now = context.clock.now()
    shown = (None if json or csv else ROWS_SHOWN) if limit is None else limit or None
    start, end = read_period(since, until, now)
    query = ReportQuery(by, now, start, end, shown)
    report = context.cost_report(query if by != "gpu" else _with_gpus(context, query))
    gaps = context.missing_rows()
    if report.rows or not gaps:  # with a lost ledger, an empty report would say that nothing was spent
        if csv:
            context.screen.raw(report_csv(report))
        elif not json:
            context.screen.lines(report_lines(report, context.screen.width))
    if gaps:
        failure = gap_error(gaps)
        failure.partial_result = report_json(report)
        raise failure
    if json:
        context.screen.document(report_json(report))


def _with_gpus(context: CliContext, query: ReportQuery) -> ReportQuery:
    """Return the query with a function that looks up GPUs in the catalog. Types of self-managed hosts name the GPU."""
    types = context.catalog.types

    def gpu_of(instance_type: str) -> str:
        known = types.get(instance_type)
        if known is not None:
            return known.gpu or NO_VALUE
        model, colon, _ = instance_type.partition(":")
        return model if colon else NO_VALUE

    return replace(query, gpu_of=gpu_of)
