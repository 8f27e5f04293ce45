"""The part of the composition root for the ledger, and for comparing the ledger with the records of a state home."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from cloudgpu.backends.base import CostLedger
from cloudgpu.cli.context.local import LocalContext
from cloudgpu.cli.context.resources import open_resources
from cloudgpu.errors import CloudGpuError

if TYPE_CHECKING:
    from cloudgpu.backends.missing_rows import MissingRows
    from cloudgpu.ledger.report import By, CostReport


@dataclass(frozen=True)
class LedgerWiring:
    """The ledger as used by one command."""

    local: LocalContext

    @cached_property
    def ledger(self) -> CostLedger:
        """The configured ledger, opened on first use.

        Raises:
            LedgerError: The ledger cannot be used.
            StateError: The command must write to the state home, but the state home is not writable.
        """
        from cloudgpu.ledger.store import open_ledger

        local = self.local
        if local.needs_disk:
            local.home.ensure()
        return open_resources.enter_context(open_ledger(local.settings.ledger_url, may_read_only=not local.needs_disk))

    def report(self, *, by: "By", now: datetime, since: datetime | None) -> "CostReport":
        """Return the cost report, without SQLAlchemy if the ledger is an SQLite file in the ordinary state.

        Raises:
            LedgerError: The ledger cannot be used.
            StateError: The state home is not writable.
        """
        from cloudgpu.ledger.sqlite_report import sqlite_report

        if self.local.needs_disk:
            self.local.home.ensure()
        summarized = sqlite_report(self.local.settings.ledger_url, by=by, now=now, since=since)
        return summarized or self.ledger.report(by=by, now=now, since=since)

    def lenient(self) -> CostLedger:
        """Return a wrapper that lets the command continue if the ledger fails. The ledger is opened on first use."""
        from cloudgpu.backends.lenient_ledger import LenientLedger

        return LenientLedger(lambda: self.ledger)

    def gaps(self) -> "tuple[MissingRows, ...]":
        """Return the resources that cost money according to this state home's records but are missing from the ledger.

        Raises:
            LedgerError: The ledger cannot be read.
            StateError: The records cannot be read.
        """
        from cloudgpu.backends.missing_rows import find_gaps

        return find_gaps(self.local.records, self.local.storage_records.all(), lambda: self.ledger)

    def warn_of_missing_rows(self) -> None:
        """Print a warning to stderr for every missing ledger row. The ledger's own errors are not reported here."""
        with suppress(CloudGpuError):
            for gap in self.gaps():
                self.local.screen.remark(f"warning: {gap.message}; to restore the ledger row: {gap.repair}")

    def restore_storage_rows(self) -> None:
        """Restore missing ledger rows of storage from the storage records."""
        from cloudgpu.app.storage.manage import retained_spending
        from cloudgpu.backends.retained_billing import RetainedBilling

        billing = RetainedBilling(self.lenient(), self.local.clock)
        for record in self.local.storage_records.all():
            if record.state == "ready":
                billing.restore(retained_spending(record), record.created_at, str(record.outputs.get("id") or ""))
