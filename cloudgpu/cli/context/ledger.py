"""The part of the composition that holds the ledger against the records of a home."""

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Ledger
from cloudgpu.cli.context.resources import opened
from cloudgpu.errors import CloudGpuError

if TYPE_CHECKING:
    from cloudgpu.backends.missing_rows import Gap
    from cloudgpu.cli.context.wiring import Wiring


@dataclass(frozen=True)
class LedgerWiring:
    """The ledger of one command."""

    wiring: "Wiring"

    def opened(self) -> Ledger:
        """Open the ledger of the settings.

        Raises:
            LedgerError: It cannot be used.
            StateError: The command needs a disk to write to, and the state home cannot be written.
        """
        from cloudgpu.ledger.store import open_ledger

        if self.wiring.needs_disk:
            self.wiring.home.ensure()
        return opened.enter_context(
            open_ledger(self.wiring.settings.ledger_url, may_read_only=not self.wiring.needs_disk)
        )

    def lenient(self) -> Ledger:
        """Return the ledger for what must not fail over it; it is opened when it is first used."""
        from cloudgpu.backends.lenient_ledger import LenientLedger

        return LenientLedger(lambda: self.wiring.ledger)

    def gaps(self) -> "tuple[Gap, ...]":
        """Return what costs money by the records of this home and has no row.

        Raises:
            LedgerError: The ledger cannot be read.
            StateError: The records cannot be read.
        """
        from cloudgpu.backends.missing_rows import gaps

        return gaps(self.wiring.records, self.wiring.storage_records.all(), self.wiring.ledger)

    def warn_of_gaps(self) -> None:
        """Say on standard error what the ledger lacks; what is wrong with the ledger itself is said elsewhere."""
        with suppress(CloudGpuError):
            for gap in self.gaps():
                self.wiring.screen.remark(f"warning: {gap.message}; `{gap.repair}` writes it again")

    def restore_storage_rows(self) -> None:
        """Write the rows of storage that the ledger has lost again; the records alone tell all of it."""
        from cloudgpu.app.storage.manage import retained_spending
        from cloudgpu.backends.retained_billing import RetainedBilling

        billing = RetainedBilling(self.lenient(), self.wiring.clock)
        for one in (one for one in self.wiring.storage_records.all() if one.state == "ready"):
            billing.restore(retained_spending(one), one.created_at, str(one.outputs.get("id") or ""))
