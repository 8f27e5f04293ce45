"""Read an SQLite ledger with Python's own `sqlite3`, because importing SQLAlchemy takes longer than that.

All other cases are left to `Ledger`, which creates, updates or copies the ledger and explains errors.
"""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.ledger.report import By, CostReport
from cloudgpu.ledger.summary_queries import Read, entries_of, is_complete, summarized_report
from cloudgpu.ledger.version import VERSION

BUSY_TIMEOUT_S = 30.0
"""How long to wait for another process that has locked the ledger."""
SQLITE_PREFIX = "sqlite:///"
"""Start of the URL of an SQLite ledger; the rest is its absolute path."""

_T = TypeVar("_T")


def sqlite_report(url: str, *, by: By, now: datetime, since: datetime | None = None) -> CostReport | None:
    """Return the report of `Ledger.report`, or None if the ledger needs more than this module can do.

    Args:
        url: URL of the ledger.
        by: What each row stands for.
        now: Time up to which open entries are charged.
        since: Count only costs from this time on.
    """
    return _read(url, lambda read: summarized_report(read, by=by, since=since, now=now) if is_complete(read) else None)


def sqlite_entries(url: str, token: str) -> tuple[LedgerEntry, ...] | None:
    """Return the entries of one cluster or storage, in the order in which they were opened.

    Return None if the ledger needs more than this module can do. Expiry extensions are omitted, because they do not
    affect costs.

    Args:
        url: URL of the ledger.
        token: Token of the cluster or storage, which begins the IDs of its entries.
    """
    return _read(url, lambda read: _entries(read, token))


def _entries(read: Read, token: str) -> tuple[LedgerEntry, ...]:
    query = "SELECT entry_id, attempt FROM opened WHERE entry_id >= :first AND entry_id < :after"
    attempts = read(query, {"first": f"{token}/", "after": f"{token}0"})
    return tuple(entries_of(read, ((entry_id, attempt) for entry_id, attempt in attempts)).values())


def _read(url: str, work: Callable[[Read], _T | None]) -> _T | None:
    """Return what `work` reads from a ledger in this version's format, or None if that is not possible."""
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

            return work(read) if read("SELECT MAX(version) FROM cloudgpu_ledger", {}) == [(VERSION,)] else None
    except sqlite3.Error:
        return None
