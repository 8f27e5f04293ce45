"""Read a report from an SQLite ledger with Python's own `sqlite3`, because importing SQLAlchemy takes longer than that.

Whatever is out of the ordinary is left to `Ledger.report`: it creates, updates or copies the ledger, and it explains
errors.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from cloudgpu.ledger.report import By, CostReport
from cloudgpu.ledger.summary_queries import is_complete, summarized_report
from cloudgpu.ledger.version import VERSION

BUSY_TIMEOUT_S = 30.0
"""How long to wait for another process that has locked the ledger."""
SQLITE_PREFIX = "sqlite:///"
"""Start of the URL of an SQLite ledger; the rest is its absolute path."""


def sqlite_report(url: str, *, by: By, now: datetime, since: datetime | None = None) -> CostReport | None:
    """Return the report of `Ledger.report`, or None if the ledger needs more than this module can do.

    Args:
        url: URL of the ledger.
        by: What each row stands for.
        now: Time up to which open entries are charged.
        since: Count only costs from this time on.
    """
    path = Path(url.removeprefix(SQLITE_PREFIX))
    if not url.startswith(SQLITE_PREFIX) or not path.is_absolute():
        return None
    try:
        # The mode `rw` never creates a file. Unlike `ro` it may create the index of a write-ahead log.
        address = f"{path.as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
            connection.execute("PRAGMA query_only=ON")
            connection.execute("BEGIN")  # one consistent view for all statements

            def read(statement: str, parameters: Mapping[str, object]) -> Sequence[Sequence[Any]]:
                return connection.execute(statement, dict(parameters)).fetchall()

            if read("SELECT MAX(version) FROM cloudgpu_ledger", {}) != [(VERSION,)] or not is_complete(read):
                return None
            return summarized_report(read, by=by, since=since, now=now)
    except sqlite3.Error:
        return None
