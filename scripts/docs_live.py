"""Compare the table of docs/reference/live.md with the checks of `scripts/live`, and update its first two columns."""

import re
from collections.abc import Mapping
from pathlib import Path

from live_tier.cluster_checks import CHECKS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "live.md"
NOT_YET = "not yet"
_ROW = re.compile(r"^\| (`(?:check|smoke|pair)` [^|]+?) \| [^|]+ \| ([^|]+?) \| ([^|]+?) \|$", re.MULTILINE)
_HEAD = "| check | what it verifies | verified on AWS | version |\n|---|---|---|---|\n"


def recorded(page: str) -> Mapping[str, tuple[str, str]]:
    """Return date and version of each row of the page, by the text of its first column."""
    return {row[1]: (row[2], row[3]) for row in _ROW.finditer(page)}


def table(known: Mapping[str, tuple[str, str]]) -> str:
    """Return the table with a row for every check. `known` has the dates and versions of earlier rows."""
    rows = []
    for check in CHECKS:
        name = f"`{check.level}` {check.name}"
        date, version = known.get(name, (NOT_YET, "-"))
        rows.append(f"| {name} | {check.verifies} | {date} | {version} |\n")
    return _HEAD + "".join(rows)


def markdown() -> str:
    """Return the page with the current checks. The text around the table, the dates and versions are kept."""
    page = PAGE.read_text(encoding="utf-8")
    start = page.index(_HEAD)
    end = start + len(page[start:].split("\n\n", 1)[0].rstrip("\n")) + 1
    return page[:start] + table(recorded(page)) + page[end:]
