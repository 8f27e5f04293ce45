"""Ledger rows of storage and machine images, which outlive clusters."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final

from cloudgpu import bounds
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.billing.missing_rows import has_failed, reopen_row
from cloudgpu.catalog.prices import HOURS_PER_MONTH, storage_price
from cloudgpu.clock import Clock
from cloudgpu.ledger.entry import LedgerEntry, Spending, Surcharge
from cloudgpu.recipe.sources import STORAGE_KINDS
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import is_simulated

NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Expiry of retained resources, which exist until they are deleted."""
_CLOCK_ERROR: Final = timedelta(minutes=5)


@dataclass(frozen=True)
class RetainedSpending:
    """A retained resource, which is billed monthly.

    Attributes:
        noun: `storage` or `image`.
        what: Type of the resource, for example `lustre`.
        token: Unique token of the resource, which is the first part of the ledger row's ID.
        monthly_usd: Price per month; None if unknown or dependent on the amount of stored data.
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
        """Name on the bill. It contains a space, so it cannot be confused with a cluster name."""
        return f"{self.noun} {self.name}"

    def spending(self, at: datetime) -> Spending:
        """Return the ledger row of the resource, which has no nodes."""
        hourly = None if self.monthly_usd is None else self.monthly_usd / HOURS_PER_MONTH
        return Spending(
            entry_id=f"{self.token}/{self.noun}",
            cluster=self.label,
            run_id="",
            recipe="",
            owner=self.owner,
            team=self.team,
            target=self.target,
            simulated=is_simulated(self.target),
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
    """Opens, restores and closes the ledger rows of retained resources.

    Attributes:
        now: The time by the cloud's clock, so that costs do not depend on this machine's.
    """

    ledger: CostLedger
    now: Callable[[], datetime]

    def open(self, spending: RetainedSpending) -> None:
        """Open a resource's row, before the first call that creates a part of the resource. Idempotent."""
        self.ledger.open(spending.spending(self.now()))

    def made(self, spending: RetainedSpending, physical_id: str, at: datetime) -> None:
        """Record that a resource was created at the time `at`, from which it is billed."""
        self.ledger.launched(spending.spending(NEVER).entry_id, [physical_id or spending.name], at)

    def restore(self, spending: RetainedSpending, at: datetime, physical_id: str) -> None:
        """Restore the row of a resource that was created at the time `at`, if the ledger has lost the row."""
        entry_id = spending.spending(at).entry_id
        known = [row.spending.entry_id for row in self.ledger.entries(cluster=spending.label)]
        if entry_id not in known and not has_failed(self.ledger) and reopen_row(self.ledger, spending.spending(at)):
            self.ledger.launched(entry_id, [physical_id or spending.name], at)

    def started(self, reported: datetime | None, otherwise: datetime) -> datetime:
        """Return the creation time that the cloud reports, or `otherwise` if it is missing or implausible."""
        with contextlib.suppress(ValueError):
            at = None if reported is None else bounds.to_utc(reported)
            if at is not None and at <= self.now() + _CLOCK_ERROR:
                return at
        return otherwise

    def ended(
        self, label: str, tokens: Sequence[str], *, found: bool, created: Mapping[str, datetime | None] | None = None
    ) -> None:
        """Close a resource's rows after the cloud confirmed the deletion.

        `found` is True if the resource existed before the deletion. A row that was never marked as created is then
        billed from the creation time that the cloud reported, in `created` by token, or else from its opening. If the
        resource did not exist, the end of its billed time is an estimate.
        """
        for row in self._open(label, tokens):
            entry_id = row.spending.entry_id
            started_at = row.launched_at or row.spending.opened_at
            if row.launched_at is None and found:
                started_at = self.started((created or {}).get(entry_id.partition("/")[0]), started_at)
                self.ledger.launched(entry_id, [label], started_at)
            # An earlier version recorded the start by this machine's clock, which may have been ahead.
            end = max(started_at, self.now())
            if row.launched_at is not None and not found:
                # The resource was deleted by other means, at an unknown time.
                self.ledger.part_ended(entry_id, "nodes", end, estimated=True)
            self.ledger.close(entry_id, end)

    def close_deleted(self, label: str, cloud: BackendIdentity, region: str) -> int:
        """Close the rows of resources in this region that no longer exist, and return how many were closed.

        Call this after a search of the region found no resource with this name. Rows that were never marked as created
        stay open, because another command may be about to create their resources. The deletion time is unknown, so the
        cost is an upper bound.
        """
        closed = 0
        for row in self.ledger.entries(cluster=label, state="open"):
            spending = row.spending
            if row.launched_at is None or (spending.endpoint, spending.region) != (cloud.endpoint, region):
                continue
            if spending.account != cloud.account():
                continue
            end = max(row.launched_at, self.now())
            self.ledger.part_ended(spending.entry_id, "nodes", end, estimated=True)
            self.ledger.close(spending.entry_id, end)
            closed += 1
        return closed

    def _open(self, label: str, tokens: Sequence[str]) -> Iterable[LedgerEntry]:
        rows = self.ledger.entries(cluster=label, state="open")
        return [row for row in rows if row.spending.entry_id.partition("/")[0] in tokens]


def restore_storage_rows(ledger: CostLedger, records: Iterable[StorageRecord], clock: Clock) -> None:
    """Restore the missing ledger rows of storage from its records."""
    billing = RetainedBilling(ledger, clock.now)
    for record in records:
        if record.state == "ready":
            billing.restore(storage_spending(record), record.created_at, str(record.outputs.get("id") or ""))


def storage_spending(record: StorageRecord) -> RetainedSpending:
    """Return the spending for storage. Its monthly price is None if the storage grows with its content."""
    kind = next((kind for kind in STORAGE_KINDS if kind == record.kind), None)
    price = storage_price(kind, record.region, record.config.get("deployment", "")) if kind else None
    size = record.config.get("sizeGib")
    return RetainedSpending(
        noun="storage",
        name=record.name,
        what=" ".join(part for part in (record.kind, record.config.get("deployment", "")) if part),
        token=record.token,
        owner=record.owner,
        team=record.team,
        target=record.target,
        account=record.account,
        endpoint=record.endpoint,
        region=record.region,
        monthly_usd=price.usd * Decimal(size) if price and size else None,
    )
