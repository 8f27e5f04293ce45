"""Ledger rows of storage and machine images, which outlive clusters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from cloudgpu.backends.base import CostLedger
from cloudgpu.backends.missing_rows import reopened, unusable
from cloudgpu.catalog.other_prices import MONTH_H
from cloudgpu.clock import Clock
from cloudgpu.ledger.entry import LedgerEntry, Spending, Surcharge
from cloudgpu.state.identity import BackendIdentity

NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Nothing of it ends by itself."""


@dataclass(frozen=True)
class RetainedSpending:
    """A retained resource that is billed by the month.

    Attributes:
        noun: `storage` or `image`.
        what: Kind of resource, for example `lustre`.
        token: Identifies the calls that create it.
        monthly_usd: None if unknown or dependent on what is stored.
    """

    noun: str
    name: str
    what: str
    token: str
    owner: str
    team: str
    target: str
    account: str
    endpoint: str
    region: str
    monthly_usd: Decimal | None

    @property
    def label(self) -> str:
        """Name on the bill. Cluster names contain no spaces, so it cannot be mistaken for one."""
        return f"{self.noun} {self.name}"

    def spending(self, at: datetime) -> Spending:
        """Return its ledger row, which has no nodes."""
        hourly = None if self.monthly_usd is None else self.monthly_usd / MONTH_H
        return Spending(
            entry_id=f"{self.token}/{self.noun}",
            cluster=self.label,
            run_id="",
            recipe="",
            owner=self.owner,
            team=self.team,
            target=self.target,
            simulated=self.target == "rehearsal",
            account=self.account,
            endpoint=self.endpoint,
            region=self.region,
            zone="",
            instance_type=self.what,
            market=self.noun,
            nodes=0,
            node_hourly_usd=Decimal(0),
            opened_at=at,
            expires_at=NEVER,
            beside=(Surcharge(self.noun, 1, hourly),),
        )


@dataclass(frozen=True)
class RetainedBilling:
    """Opens and closes the rows of retained resources."""

    ledger: CostLedger
    clock: Clock

    def open(self, spending: RetainedSpending) -> None:
        """Open its row before the first call that creates any part of it. Repeating this has no effect.

        Raises:
            LedgerError: The row cannot be written, so nothing may be created.
        """
        self.ledger.open(spending.spending(self.clock.now()))

    def made(self, spending: RetainedSpending, physical_id: str) -> None:
        """Record that it was created.

        Raises:
            LedgerError: The ledger is unusable.
        """
        self.ledger.launched(spending.spending(NEVER).entry_id, [physical_id or spending.name], self.clock.now())

    def restore(self, spending: RetainedSpending, at: datetime, physical_id: str) -> None:
        """Write the row of something that was made at this moment again, if the ledger has lost it.

        Raises:
            LedgerError: The ledger cannot be written, and is not a lenient one.
        """
        entry_id = spending.spending(at).entry_id
        known = [row.spending.entry_id for row in self.ledger.entries(cluster=spending.label)]
        if entry_id not in known and not unusable(self.ledger) and reopened(self.ledger, spending.spending(at)):
            self.ledger.launched(entry_id, [physical_id or spending.name], at)

    def ended(self, label: str, tokens: Sequence[str], *, found: bool) -> None:
        """Close its row after the cloud confirmed the deletion.

        `found` is True if a resource existed, so that a call without a response did cost money.

        Raises:
            LedgerError: The ledger is unusable.
        """
        for row in self._open(label, tokens):
            now, entry_id = self.clock.now(), row.spending.entry_id
            if row.launched_at is None and found:
                self.ledger.launched(entry_id, [label], row.spending.opened_at)
            elif row.launched_at is not None and not found:
                # Somebody deleted it elsewhere, and nobody knows when.
                self.ledger.part_ended(entry_id, "nodes", now, estimated=True)
            self.ledger.close(entry_id, now)

    def deleted_elsewhere(self, label: str, cloud: BackendIdentity, region: str) -> int:
        """Close the rows of resources in this region that no longer exist, and return how many were closed.

        Call this after a search in the region found nothing of this name. Rows that were never marked as created are
        kept, because another command may be about to create them. The end time is unknown, so the bill is an upper
        bound.

        Raises:
            CloudError: Such a row exists, and AWS does not report the account ID.
            LedgerError: The ledger is unusable.
        """
        closed = 0
        for row in self.ledger.entries(cluster=label, state="open"):
            spending = row.spending
            if row.launched_at is None or (spending.endpoint, spending.region) != (cloud.endpoint, region):
                continue
            if spending.account != cloud.account():
                continue
            now = self.clock.now()
            self.ledger.part_ended(spending.entry_id, "nodes", now, estimated=True)
            self.ledger.close(spending.entry_id, now)
            closed += 1
        return closed

    def _open(self, label: str, tokens: Sequence[str]) -> Iterable[LedgerEntry]:
        rows = self.ledger.entries(cluster=label, state="open")
        return [row for row in rows if row.spending.entry_id.partition("/")[0] in tokens]
