"""Read an SQLite ledger with Python's `sqlite3` module, because importing SQLAlchemy would take longer than reading it.

If this module cannot read the ledger, the caller uses `Ledger`, which creates, updates or copies the ledger and
explains errors.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.ledger.report import CostReport, ReportQuery
from cloudgpu.ledger.summary_queries import Read, entries_of, is_complete, summarized_report
from cloudgpu.ledger.version import VERSION

BUSY_TIMEOUT_S = 30.0
"""Maximum time in seconds to wait while another process has the ledger locked."""
SQLITE_PREFIX = "sqlite:///"
"""Prefix of the URL of an SQLite ledger. The absolute path of the file follows."""

_T = TypeVar("_T")


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
