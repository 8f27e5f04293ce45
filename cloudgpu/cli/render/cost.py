"""The ledger's report as text and as JSON."""

import re
from datetime import datetime
from typing import Any

from cloudgpu import bounds
from cloudgpu.cli.terminal.number_format import format_time, money
from cloudgpu.cli.terminal.table import align_columns
from cloudgpu.errors import UsageError
from cloudgpu.ledger.report import CostReport, ReportRow

_AGE = re.compile(r"[0-9]+[dhms]")


def read_since(text: str | None, now: datetime) -> datetime | None:
    """Parse a date such as `2026-11-01` or an age such as `7d`.

    Raises:
        UsageError: The text is neither a date nor an age.
    """
    if text is None:
        return None
    try:
        return bounds.parse_age(text, now) if _AGE.fullmatch(text) else bounds.parse_time(text)
    except ValueError:
        message = f"--since {text}: expected a date such as 2026-11-01, or an age such as 7d, 12h or 30m"
        raise UsageError(message, hint="use a date or an age that is not before the year 2000") from None


def report_json(report: CostReport, by: str) -> dict[str, Any]:
    """Return the documented output of `cost --json`, with amounts as strings."""
    return {
        "by": by,
        "rows": [
            {
                by: row.key,
                "simulated": row.simulated,
                "node_hours": str(row.node_hours),
                "usd": str(row.usd),
                "open_entries": row.open_entries,
                "runs": row.runs,
                "unpriced_entries": row.unpriced,
                "estimated_entries": row.estimated,
            }
            for row in report.rows
        ],
        "real_usd": str(report.real_usd),
        "simulated_usd": str(report.simulated_usd),
    }


def report_lines(report: CostReport, by: str) -> list[str]:
    """Return a table and the totals of real and simulated costs, which are never added together."""
    since = "" if report.since is None else f" since {format_time(report.since)}"
    if not report.rows:
        return [f"nothing was spent{since}"]
    rows = [_row(row) for row in report.rows]
    table = align_columns([(by, "node hours", "cost", ""), *rows], right={1, 2})
    return [*table, "", f"real {money(report.real_usd)}, simulated {money(report.simulated_usd)}{since}"]


def _row(row: ReportRow) -> tuple[str, ...]:
    words = {"simulated": row.simulated, "still accruing": row.open_entries, "excludes unknown prices": row.unpriced}
    words["estimated, at most"] = row.estimated
    marks = ", ".join(word for word, on in words.items() if on)
    return row.key, f"{row.node_hours:.3f}", money(row.usd), marks
