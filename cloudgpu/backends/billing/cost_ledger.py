"""The interface of the ledger, which records everything that costs money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Only for annotations: commands that need no ledger must not import SQLAlchemy.
    from datetime import datetime

    from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
    from cloudgpu.ledger.report import By, CostReport, ReportQuery


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
