"""Ledger rows of storage, from the records of the state home."""

from collections.abc import Iterable
from decimal import Decimal

from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.billing.retained_billing import RetainedBilling, RetainedSpending
from cloudgpu.catalog.storage import KINDS, storage_price
from cloudgpu.clock import Clock
from cloudgpu.state.storage_records import StorageRecord


def restore_storage_rows(ledger: CostLedger, records: Iterable[StorageRecord], clock: Clock) -> None:
    """Restore the missing ledger rows of storage from its records."""
    billing = RetainedBilling(ledger, clock)
    for record in records:
        if record.state == "ready":
            billing.restore(retained_spending(record), record.created_at, str(record.outputs.get("id") or ""))


def retained_spending(record: StorageRecord) -> RetainedSpending:
    """Return the ledger entry for storage. If the storage grows with its content, the price is unknown in advance."""
    kind = next((kind for kind in KINDS if kind == record.kind), None)
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
        monthly_usd=price.monthly_usd(Decimal(size)) if price and size else None,
    )
