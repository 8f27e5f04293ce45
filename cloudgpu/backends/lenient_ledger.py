"""A ledger whose failures do not block deletion, so that no node keeps running because its end cannot be recorded."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from cloudgpu.backends.base import CostLedger
from cloudgpu.backends.context import Context
from cloudgpu.errors import LedgerError
from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
from cloudgpu.ledger.report import By, CostReport

_T = TypeVar("_T")


class LenientLedger:
    """Forward calls to the ledger. After a failure, results are unknown, and `check` reports the failure at the end."""

    def __init__(self, opened: Callable[[], CostLedger]) -> None:
        self._opened = opened
        self._failure: LedgerError | None = None

    @property
    def failed(self) -> bool:
        """True once the ledger has failed; it is not used again."""
        return self._failure is not None

    def remember(self, failure: LedgerError) -> None:
        """Count a failure that its caller has dealt with, so that `check` reports it in the end."""
        self._failure = self._failure or failure

    def check(self, what: str) -> None:
        """Reject `what` as done if its ledger rows could not be read or closed.

        Raises:
            LedgerError: They could not.
        """
        if self._failure is not None:
            message = f"{what}, but its ledger rows are not closed: {self._failure.message}"
            raise LedgerError(message, hint=self._failure.hint) from self._failure

    def open(self, spending: Spending) -> None:
        """Open a row. Failures are raised, because nothing may be launched without a row."""
        self._opened().open(spending)

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the instances that a launch call returned."""
        self._tried(lambda: self._opened().launched(entry_id, instance_ids, at), None)

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Extend a row. Failures are raised, because nothing may live longer without a record."""
        self._opened().extend(entry_id, until, at)

    def close(self, entry_id: str, at: datetime) -> None:
        """Close a row after the cloud confirmed the deletion."""
        self._tried(lambda: self._opened().close(entry_id, at), None)

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record the end of a part of an open entry."""
        self._tried(lambda: self._opened().part_ended(entry_id, part, at, estimated=estimated), None)

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Record the start of a run. Failures are raised."""
        self._opened().run_started(run_id, cluster, recipe, owner, team, at)

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Record the end of a run."""
        self._tried(lambda: self._opened().run_ended(run_id, state, at), None)

    def entries(
        self, *, cluster: str | None = None, state: EntryState | None = None, since: datetime | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return the rows, oldest first; none if the ledger cannot be read."""
        return self._tried(lambda: self._opened().entries(cluster=cluster, state=state, since=since), ())

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> CostReport:
        """Return the bill. Failures are raised."""
        return self._opened().report(by=by, now=now, since=since)

    def _tried(self, work: Callable[[], _T], otherwise: _T) -> _T:
        if self._failure is not None:
            return otherwise
        try:
            return work()
        except LedgerError as err:
            self._failure = err
            return otherwise


def check_ledger(context: Context, what: str) -> None:
    """Refuse to call `what` done when it could not be recorded.

    Raises:
        LedgerError: The context's ledger is lenient and could not be read or written.
    """
    if isinstance(context.ledger, LenientLedger):
        context.ledger.check(what)
