"""Ledger rows and monthly prices of storage and machine images, which outlive clusters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cloudgpu import bounds
from cloudgpu.backends.billing.cost_ledger import CostLedger, has_failed, reopen_row
from cloudgpu.catalog.prices_and_quotas import HOURS_PER_MONTH, shipped_price, storage_price
from cloudgpu.clock import Clock
from cloudgpu.ledger.entry import LedgerEntry, Spending, Surcharge
from cloudgpu.recipe.sources import STORAGE_KINDS
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import is_simulated

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.cloud import OwnImage, TaggedStorage
    from cloudgpu.state.cluster_record import ClusterIdentity

NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""Expiry of retained resources, which exist until they are deleted."""
_CLOCK_ERROR: Final = timedelta(minutes=5)
_PRICED_IN = "us-east-1"
"""Region whose snapshot price is used for all regions."""


@dataclass(frozen=True)
class RetainedBilling:
    """Opens, restores and closes the ledger rows of retained resources.

    Attributes:
        now: The time by the cloud's clock, so that costs do not depend on this machine's.
    """

    ledger: CostLedger
    now: Callable[[], datetime]

    def open(self, row: Spending) -> None:
        """Open a resource's row, before the first call that creates a part of the resource. Idempotent."""
        self.ledger.open(replace(row, opened_at=self.now()))

    def made(self, row: Spending, physical_id: str, at: datetime) -> None:
        """Record that a resource was created at the time `at`, from which it is billed."""
        self.ledger.launched(row.entry_id, [physical_id or row.cluster.removeprefix(f"{row.market} ")], at)

    def restore(self, row: Spending, at: datetime, physical_id: str) -> None:
        """Restore the row of a resource that was created at the time `at`, if the ledger has lost the row."""
        known = [entry.spending.entry_id for entry in self.ledger.entries(cluster=row.cluster)]
        if row.entry_id in known or has_failed(self.ledger):
            return
        if reopen_row(self.ledger, replace(row, opened_at=at)):
            self.made(row, physical_id, at)

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


def storage_spending(record: StorageRecord) -> Spending:
    """Return the ledger row of storage. Its monthly price is unknown if the storage grows with its content."""
    kind = next((kind for kind in STORAGE_KINDS if kind == record.kind), None)
    price = storage_price(kind, record.region, record.config.get("deployment", "")) if kind else None
    size = record.config.get("sizeGib")
    what = " ".join(part for part in (record.kind, record.config.get("deployment", "")) if part)
    monthly_usd = price.usd * Decimal(size) if price and size else None
    return retained_spending("storage", record.name, what, record, record.region, monthly_usd)


def retained_spending(
    noun: str, name: str, what: str, creator: StorageRecord | ClusterIdentity, region: str, monthly_usd: Decimal | None
) -> Spending:
    """Return the ledger row of a retained resource, which has no nodes and is billed monthly.

    Args:
        noun: `storage` or `image`. With the name, it is the name on the bill, which contains a space, so that it cannot
            be confused with a cluster name.
        name: Name of the resource.
        what: Type of the resource, for example `lustre`.
        creator: Who created the resource, when and where. Its token is unique to the resource.
        region: Region of the resource.
        monthly_usd: Price per month; None if unknown or dependent on the amount of stored data.
    """
    return Spending(
        entry_id=f"{creator.token}/{noun}",
        cluster=f"{noun} {name}",
        run_id="",
        recipe="",
        owner=creator.owner,
        team=creator.team,
        target=creator.target,
        simulated=is_simulated(creator.target),
        account=creator.account,
        endpoint=creator.endpoint,
        region=region,
        zone="",
        instance_type=what,
        market=noun,
        nodes=0,
        node_hourly_usd=Decimal(0),
        opened_at=creator.created_at,
        expires_at=NEVER,
        beside=(Surcharge(noun, 1, None if monthly_usd is None else monthly_usd / HOURS_PER_MONTH),),
    )


def image_monthly_usd(image: OwnImage) -> Decimal:
    """Return an upper bound for the monthly cost of the image's snapshots in USD, at the us-east-1 price."""
    return image.size_gib * shipped_price("snapshot_gib_month_usd", _PRICED_IN).usd


def storage_monthly_usd(stored: TaggedStorage) -> Decimal | None:
    """Return the monthly cost of the current capacity in USD, or None if unknown."""
    return capacity_monthly_usd(stored, stored.data.size_gib if stored.data else Decimal(0))


def capacity_monthly_usd(stored: TaggedStorage, size_gib: Decimal | None) -> Decimal | None:
    """Return the monthly cost of this capacity in USD; None if the size or price is unknown, 0 if no data exists."""
    kind = next((kind for kind in STORAGE_KINDS if kind == stored.kind), None)
    if stored.data is None:
        return Decimal(0)
    price = storage_price(kind, stored.region, stored.data.deployment.lower()) if kind else None
    return None if price is None or size_gib is None else price.usd * size_gib
