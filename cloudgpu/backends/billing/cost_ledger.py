"""The interface of the ledger, which records everything that costs money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # Only for annotations: commands that need no ledger must not import SQLAlchemy.
    from datetime import datetime

    from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
    from cloudgpu.ledger.report import By, CostReport


class CostLedger(Protocol):
    """The ledger of resources that cost money."""

    def open(self, spending: Spending) -> None:
        """Durably write a row for an entry. Idempotent for the same entry ID."""

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the instances that a launch call returned."""

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record that an entry's expiry was extended."""

    def close(self, entry_id: str, at: datetime) -> None:
        """Close an entry after the cloud has confirmed the deletion."""

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

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> CostReport:
        """Return the cost report."""
