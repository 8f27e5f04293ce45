"""The interface of the ledger, which records everything that costs money, and a ledger for deletions.

A deletion must not depend on the ledger: no node may keep running because the ledger is unusable. It therefore uses a
`LenientLedger`, whose failure is reported when the deletion has been verified.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from cloudgpu.errors import LedgerError

if TYPE_CHECKING:
    # Only for annotations: commands that need no ledger must not import SQLAlchemy.
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
    from cloudgpu.ledger.report import By, CostReport, ReportQuery

_T = TypeVar("_T")


class CostLedger(Protocol):
    """The ledger of resources that cost money."""

    def open(self, spending: Spending) -> None:
        """Durably write a row for an expected cost. An open row is left unchanged; a closed row is reopened."""

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the instances that a launch call returned."""

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record at the time `at` that an entry's expiry was extended to `until`."""

    def close(self, entry_id: str, at: datetime) -> None:
        """Close an entry at the time `at`, after the cloud has confirmed the deletion."""

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record when a part of an open entry stopped being billed. Later calls for the same part have no effect."""

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Record that a run started using a cluster."""

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Record the final state of a run."""

    def entries(
        self,
        *,
        cluster: str | None = None,
        state: EntryState | None = None,
        since: datetime | None = None,
        token: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Return the matching rows, oldest first."""

    def report(self, *, by: By, now: datetime, since: datetime | None = None, limit: int | None = None) -> CostReport:
        """Return the costs up to `now`, with at most `limit` rows: one for each user, run, day and so on."""

    def query(self, query: ReportQuery) -> CostReport:
        """Return a cost report."""


class LenientLedger:
    """A ledger proxy. After a failure, most calls do nothing, and `check` reports the failure at the end."""

    def __init__(
        self,
        opened: Callable[[], CostLedger],
        read_entries: Callable[[str], tuple[LedgerEntry, ...] | None] | None = None,
    ) -> None:
        """Wrap a ledger.

        Args:
            opened: Function that returns the open ledger. Called for every operation, so it should cache the ledger.
            read_entries: Function that reads the entries of a token without opening the ledger, which is faster. It
                returns None if it cannot.
        """
        self._opened = opened
        self._read_entries = read_entries
        self._failure: LedgerError | None = None

    @property
    def failure(self) -> LedgerError | None:
        """The first failed call to the ledger; None if there was none."""
        return self._failure

    def remember(self, failure: LedgerError) -> None:
        """Store a failure that the caller handled, so that `check` reports it at the end."""
        self._failure = self._failure or failure

    def check(self, what: str) -> None:
        """Raise the stored failure, if any; `what` describes the completed operation in the message."""
        if self._failure is not None:
            message = f"{what}, but its ledger rows are not closed: {self._failure.message}"
            raise LedgerError(message, hint=self._failure.hint) from self._failure

    def open(self, spending: Spending) -> None:
        """Open a row. Failures are raised, because nothing may be launched without a ledger row."""
        self._opened().open(spending)

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the instances that a launch call returned."""
        self._call(lambda: self._opened().launched(entry_id, instance_ids, at), None)

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record a later expiry. Failures are raised, because the expiry may be extended only if it is recorded."""
        self._opened().extend(entry_id, until, at)

    def close(self, entry_id: str, at: datetime) -> None:
        """Close a row after the cloud confirmed the deletion."""
        self._call(lambda: self._opened().close(entry_id, at), None)

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record when a part of an open entry stopped being billed."""
        self._call(lambda: self._opened().part_ended(entry_id, part, at, estimated=estimated), None)

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Record the start of a run. Failures are raised."""
        self._opened().run_started(run_id, cluster, recipe, owner, team, at)

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Record the final state of a run."""
        self._call(lambda: self._opened().run_ended(run_id, state, at), None)

    def entries(
        self,
        *,
        cluster: str | None = None,
        state: EntryState | None = None,
        since: datetime | None = None,
        token: str | None = None,
    ) -> tuple[LedgerEntry, ...]:
        """Return the rows, oldest first; none if the ledger cannot be read."""
        if self._read_entries is not None and token is not None and state is None and since is None:
            rows = self._read_entries(token)
            if rows is not None:
                return tuple(row for row in rows if cluster in (None, row.spending.cluster))
        return self._call(lambda: self._opened().entries(cluster=cluster, state=state, since=since, token=token), ())

    def report(self, *, by: By, now: datetime, since: datetime | None = None, limit: int | None = None) -> CostReport:
        """Return the cost report. Failures are raised."""
        return self._opened().report(by=by, now=now, since=since, limit=limit)

    def query(self, query: ReportQuery) -> CostReport:
        """Return a cost report. Failures are raised."""
        return self._opened().query(query)

    def _call(self, work: Callable[[], _T], default: _T) -> _T:
        if self._failure is not None:
            return default
        try:
            return work()
        except LedgerError as err:
            self._failure = err
            return default


def lenient(ledger: CostLedger) -> LenientLedger:
    """Return a ledger that does not stop a deletion, for commands that otherwise need their ledger."""
    return ledger if isinstance(ledger, LenientLedger) else LenientLedger(lambda: ledger)


def check_ledger(ledger: CostLedger, what: str) -> None:
    """Raise an error if the completed operation `what` could not be recorded in a lenient ledger."""
    if isinstance(ledger, LenientLedger):
        ledger.check(what)


def failure_of(ledger: CostLedger) -> LedgerError | None:
    """Return the failure after which the rows of a lenient ledger are unknown; None if there was none."""
    return ledger.failure if isinstance(ledger, LenientLedger) else None


def has_failed(ledger: CostLedger) -> bool:
    """Return True if the ledger is lenient and has already failed, so that its rows are unknown."""
    return failure_of(ledger) is not None


def reopen_row(ledger: CostLedger, row: Spending) -> bool:
    """Open a row that was lost. Return False if a lenient ledger cannot be written."""
    try:
        ledger.open(row)
    except LedgerError as err:
        if not isinstance(ledger, LenientLedger):
            raise
        ledger.remember(err)
        return False
    return True
