"""`storage list`: list existing storage with its cost and users."""

from collections.abc import Sequence
from decimal import Decimal

from cloudgpu.aws.storage.storage_tags import TaggedStorage
from cloudgpu.backends.aws.account import AwsAccount
from cloudgpu.backends.billing.retained_prices import capacity_monthly_usd
from cloudgpu.backends.storage import StorageRow
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import is_simulated


def list_storage(cloud: AwsAccount, records: Sequence[StorageRecord], default_region: str) -> tuple[StorageRow, ...]:
    """List the storage of all owners in the default region and the regions of the records, sorted by name."""
    known = [record for record in records if (record.target, record.endpoint) == (cloud.target, cloud.endpoint)]
    regions = sorted({default_region, *(record.region for record in known)})
    found = [stored for region in regions for stored in cloud.storage.found(region)]
    simulated = is_simulated(cloud.target)
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
        monthly_usd=capacity_monthly_usd(stored, size),
        created_at=data.created_at if data else None,
        users=stored.users,
        simulated=simulated,
        id=data.id if data else "",
        made_for=stored.made_for,
    )


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
