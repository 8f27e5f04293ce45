"""A ledger that is not in the way of an end: no node runs on because nobody can write down that it ended."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from cloudgpu.backends.base import Ledger
from cloudgpu.backends.context import Context
from cloudgpu.errors import LedgerError
from cloudgpu.ledger.entry import Entry, EntryState, Part, Spending
from cloudgpu.ledger.report import By, Report

_T = TypeVar("_T")


class LenientLedger:
    """Passes everything on; what fails over the ledger itself counts as unknown, and `check` tells of it in the end."""

    def __init__(self, opened: Callable[[], Ledger]) -> None:
        self._opened = opened
        self._failure: LedgerError | None = None

    @property
    def failed(self) -> bool:
        """Whether the ledger could not be used, so that nothing more is asked of it."""
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
        """Not lenient: nothing is bought that is not written down."""
        self._opened().open(spending)

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """The call was answered with these instances."""
        self._tried(lambda: self._opened().launched(entry_id, instance_ids, at), None)

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Not lenient: nothing lives longer that is not written down."""
        self._opened().extend(entry_id, until, at)

    def close(self, entry_id: str, at: datetime) -> None:
        """The cloud confirmed the end."""
        self._tried(lambda: self._opened().close(entry_id, at), None)

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """A part of an open entry ended."""
        self._tried(lambda: self._opened().part_ended(entry_id, part, at, estimated=estimated), None)

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Not lenient: a run that begins is written down."""
        self._opened().run_started(run_id, cluster, recipe, owner, team, at)

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """A run ended."""
        self._tried(lambda: self._opened().run_ended(run_id, state, at), None)

    def entries(
        self, *, cluster: str | None = None, state: EntryState | None = None, since: datetime | None = None
    ) -> tuple[Entry, ...]:
        """Rows, oldest first; none when they cannot be read."""
        return self._tried(lambda: self._opened().entries(cluster=cluster, state=state, since=since), ())

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> Report:
        """Not lenient: a bill that nobody can read is none."""
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
