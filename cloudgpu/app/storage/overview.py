"""`storage list`: list existing storage with its cost and users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cloudgpu.backends.base import StorageCloud
from cloudgpu.catalog.storage import KINDS, storage_price
from cloudgpu.state.storage_records import StorageRecord

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.aws.storage.storage_tags import TaggedStorage


@dataclass(frozen=True)
class StorageRow:
    """One row of `storage list`. None means unknown.

    Attributes:
        state: State according to the cloud; `not found` for a record without tagged resources.
        monthly_usd: Cost of the capacity at the catalog price.
        made_for: Name of the cluster whose deletion also deletes the storage; empty if the storage outlives clusters.
        users: Instances that may have mounted or attached the storage.
    """

    name: str
    kind: str
    region: str
    owner: str
    state: str
    disposable: bool
    size_gib: Decimal | None
    monthly_usd: Decimal | None
    created_at: datetime | None
    users: tuple[str, ...] | None
    simulated: bool
    id: str = ""
    made_for: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the documented entry of `storage list --json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "region": self.region,
            "owner": self.owner,
            "state": self.state,
            "disposable": self.disposable,
            "made_for": self.made_for,
            "size_gib": None if self.size_gib is None else str(self.size_gib),
            "monthly_usd": None if self.monthly_usd is None else str(self.monthly_usd),
            "created_at": self.created_at.isoformat() if self.created_at else None,
            "used_by": None if self.users is None else list(self.users),
            "id": self.id,
            "simulated": self.simulated,
        }


def list_storage(cloud: StorageCloud, records: Sequence[StorageRecord], default_region: str) -> tuple[StorageRow, ...]:
    """List the storage of all owners in the default region and the regions of the records, sorted by name.

    Raises:
        CloudError: A region cannot be queried.
    """
    known = [record for record in records if (record.target, record.endpoint) == (cloud.target, cloud.endpoint)]
    regions = sorted({default_region, *(record.region for record in known)})
    found = [stored for region in regions for stored in cloud.found(region)]
    simulated = cloud.target == "rehearsal"
    rows = [_found_row(stored, simulated=simulated) for stored in found]
    seen = {(stored.name, stored.token) for stored in found}
    rows += [_lost_row(record) for record in known if (record.name, record.token) not in seen]
    return tuple(sorted(rows, key=lambda row: (row.name, row.region)))


def _found_row(stored: TaggedStorage, *, simulated: bool) -> StorageRow:
    data = stored.data
    size = data.size_gib if data else Decimal(0)
    return StorageRow(
        name=stored.name,
        kind=stored.kind,
        region=stored.region,
        owner=stored.tag("cloudgpu:owner"),
        state=(data.state.lower() or "available") if data else "partly created or deleted",
        disposable=stored.disposable,
        size_gib=size,
        monthly_usd=_monthly(stored, size),
        created_at=data.created_at if data else None,
        users=stored.users,
        simulated=simulated,
        id=data.id if data else "",
        made_for=stored.made_for,
    )


def monthly_usd(stored: TaggedStorage) -> Decimal | None:
    """Return the monthly cost of the current capacity in USD, or None if unknown."""
    return _monthly(stored, stored.data.size_gib if stored.data else Decimal(0))


def _monthly(stored: TaggedStorage, size_gib: Decimal | None) -> Decimal | None:
    kind = next((kind for kind in KINDS if kind == stored.kind), None)
    if stored.data is None:
        return Decimal(0)
    price = storage_price(kind, stored.region, stored.data.deployment.lower()) if kind else None
    return None if price is None or size_gib is None else price.monthly_usd(size_gib)


def _lost_row(record: StorageRecord) -> StorageRow:
    """Return the row of a record that has no tagged resources. Its size and cost are unknown."""
    return StorageRow(
        name=record.name,
        kind=record.kind,
        region=record.region,
        owner=record.owner,
        state="not found",
        disposable=record.disposable,
        size_gib=None,
        monthly_usd=None,
        created_at=record.created_at,
        users=None,
        simulated=record.simulated,
        made_for=record.made_for,
    )
