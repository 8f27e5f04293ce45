"""Find, list, attach and delete the storage of one account by its tags."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws import storage
from cloudgpu.aws.ec2.instances import attach_volume
from cloudgpu.aws.ec2.subnets import region_network
from cloudgpu.aws.iam_grants import EFS, FSX, service_role_names
from cloudgpu.aws.s3 import empty_bucket, require_bucket
from cloudgpu.aws.session.session import Session
from cloudgpu.backends.aws.engines import Engines
from cloudgpu.backends.billing.retained_billing import capacity_monthly_usd
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.clock import Clock
from cloudgpu.cloud import MADE_FOR_TAG, TaggedStorage
from cloudgpu.engine.base import Engine
from cloudgpu.errors import CloudGpuError
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.text import command


@dataclass(frozen=True)
class AwsStorage:
    """Storage on AWS or the rehearsal cloud, in any region."""

    session: Callable[[str], Session]
    engines: Engines
    clock: Clock
    simulated: bool

    def engine(self, record: StorageRecord) -> Engine:
        """Return the engine that creates and deletes this storage, configured with the storage's tags and identity."""
        return self.engines.engine(record, storage_tags(record))

    def found(self, region: str, name: str = "") -> Sequence[TaggedStorage]:
        """Return all tagged storage in a region, or only the storage with this name."""
        return storage.stored(self.session(region), name)

    def network(self, region: str, request: NetworkRequest) -> RegionNetwork:
        """Return the VPC and the subnets in which new file systems and the nodes of a region would be."""
        return region_network(self.session(region), request, simulated=self.simulated)

    def require_bucket(self, region: str, url: str) -> None:
        """Raise an error if the bucket of an S3 URL does not exist or is not accessible."""
        require_bucket(self.session(region), url)

    def empty(self, stored: TaggedStorage) -> None:
        """Delete all objects in the storage's bucket, if it has a bucket."""
        for part in stored.parts:
            if part.kind == "s3":
                empty_bucket(self.session(stored.region), part.id)

    def end(self, stored: TaggedStorage) -> list[str]:
        """Delete all parts of the storage and their data. Return one line per part that could not be deleted."""
        return storage.delete_storage(self.session(stored.region), stored, self.clock)

    def role_hint(self, record: StorageRecord, cause: CloudGpuError) -> str:
        """Return what to do if a service-linked role that storage needs is missing; empty if none is missing.

        AWS's errors name neither the role nor the action: EFS says only that the caller is not authorized.
        """
        allow = f"allow what `{command('cloudgpu', 'doctor', '--storage', '--policy')}` prints"
        role = {"efs": EFS, "lustre": FSX}.get(record.kind)
        try:
            if role is not None and role.name not in service_role_names(self.session(record.region)):
                return f"the account has no role {role.name}: run `{role.create_command}` once, or {allow}"
        except CloudGpuError:
            return ""
        if "Service-Linked-Role" in cause.message:
            return f"FSx creates a role for each linked bucket with your permissions: {allow} (LinkBuckets)"
        return ""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume to an instance as its data volume `number`, counted from 0. Idempotent."""
        attach_volume(self.session(region), self.clock, volume_id, instance_id, number)


def storage_tags(record: StorageRecord) -> Mapping[str, str]:
    """Return the tags for the storage's resources.

    The tags do not include a cluster tag, so deleting a cluster does not delete the storage.
    """
    return {
        "cloudgpu:storage": record.name,
        "cloudgpu:kind": record.kind,
        "cloudgpu:owner": record.owner,
        "cloudgpu:team": record.team,
        "cloudgpu:keep": "false" if record.disposable else "true",
        "cloudgpu:token": record.token,
        **({MADE_FOR_TAG: record.made_for} if record.made_for else {}),
    }


def list_storage(
    stores: AwsStorage, records: Sequence[StorageRecord], default_region: str
) -> tuple[RetainedResource, ...]:
    """List the storage of all owners in the default region and the regions of the account's records, sorted by name."""
    regions = sorted({default_region, *(record.region for record in records)})
    found = [stored for region in regions for stored in stores.found(region)]
    rows = [retained_storage(stored, simulated=stores.simulated) for stored in found]
    seen = {(stored.name, stored.token) for stored in found}
    rows += [_missing_storage(record) for record in records if (record.name, record.token) not in seen]
    return tuple(sorted(rows, key=lambda row: (row.name, row.region)))


def retained_storage(stored: TaggedStorage, *, simulated: bool) -> RetainedResource:
    """Return storage as its tags and the cloud describe it."""
    data = stored.data
    size = data.size_gib if data else Decimal(0)
    return RetainedResource(
        noun="storage",
        name=stored.name,
        token=stored.token,
        kind=stored.kind,
        owner=stored.tag("cloudgpu:owner"),
        region=stored.region,
        id=data.id if data else "",
        since=data.created_at if data else None,
        size_gib=size,
        monthly_usd=capacity_monthly_usd(stored, size),
        disposable=stored.disposable,
        made_for=stored.made_for,
        users=stored.users,
        state=(data.state.lower() or "available") if data else "partly created or deleted",
        simulated=simulated,
    )


def _missing_storage(record: StorageRecord) -> RetainedResource:
    """Return the storage of a record that has no tagged resources. Its size and cost are unknown."""
    return RetainedResource(
        noun="storage",
        name=record.name,
        token=record.token,
        kind=record.kind,
        owner=record.owner,
        region=record.region,
        id="",
        since=record.created_at,
        size_gib=None,
        monthly_usd=None,
        disposable=record.disposable,
        made_for=record.made_for,
        users=None,
        state="not found",
        simulated=record.simulated,
    )
