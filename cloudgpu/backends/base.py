"""Interfaces that the use cases depend on. `cli/context/wiring.py` provides the implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cloudgpu.state.identity import BackendIdentity

if TYPE_CHECKING:
    # Only for annotations: importing the recipe schema and SSH would slow down commands that only read records.
    from datetime import datetime
    from pathlib import Path

    from cloudgpu.aws.ec2.billing_times import Lifetime
    from cloudgpu.aws.ec2.tagged_types import SearchResult
    from cloudgpu.aws.storage.storage_tags import TaggedStorage
    from cloudgpu.backends.events import Emit
    from cloudgpu.catalog.quotas import Quota
    from cloudgpu.engine.base import Engine
    from cloudgpu.launch.inventory import Inventory, Node
    from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
    from cloudgpu.ledger.report import By, CostReport
    from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence
    from cloudgpu.plan.plan import Quotes
    from cloudgpu.plan.reservations import ReservationLookup
    from cloudgpu.run.data.files import RemoteFile, S3Service
    from cloudgpu.ssh.base import Host
    from cloudgpu.state.cluster_and_run_records import ClusterRecord
    from cloudgpu.state.storage_records import StorageRecord


class TaggedResource(Protocol):
    """A resource with a cluster's tag."""

    @property
    def kind(self) -> str:
        """Resource type: `instance`, `volume`, `security-group` ..."""

    @property
    def id(self) -> str:
        """Resource ID assigned by the cloud."""

    @property
    def region(self) -> str:
        """Region of the resource; `global` for IAM."""

    @property
    def tags(self) -> Mapping[str, str]:
        """All tags of the resource."""


class BillableResource(TaggedResource, Protocol):
    """A tagged resource with the properties that determine its price."""

    @property
    def state(self) -> str:
        """State reported by the cloud; empty for resources without a state."""

    @property
    def since(self) -> datetime | None:
        """Launch or creation time; None if the cloud does not report one."""

    @property
    def instance_type(self) -> str:
        """Instance type; empty for other resources."""

    @property
    def market(self) -> str:
        """Market of an instance; empty for other resources."""

    @property
    def volume_type(self) -> str:
        """Volume type such as `gp3`; empty for other resources."""

    @property
    def size_gib(self) -> int | None:
        """Size of a volume; None for other resources."""


class Backend(BackendIdentity, Protocol):
    """A backend on which runs execute: launched instances or self-managed hosts."""

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that no longer exist."""

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with presigned URLs."""

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""


class Cloud(Backend, Protocol):
    """A cloud that launches instances."""

    def images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the machine image for each (SSM parameter, region) pair, omitting unreadable parameters."""

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Return the zones that offer each instance type, by (instance type, region) pair."""

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user, `direct` or `pulumi`; empty if the user selected none."""

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """Look up a capacity reservation in these regions, in order, until one contains it."""

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Return the number of Elastic IPs that the account can still allocate, for each region that can be queried."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota in a region, by quota key."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Return the account's running vCPUs in a region, by quota. Quotas without running vCPUs are omitted."""

    def engine(self, record: ClusterRecord) -> Engine:
        """Return the engine that creates and deletes this cluster, configured with the cluster's tags and identity."""

    def caller_cidr(self) -> str:
        """Return the CIDR that may connect to port 22, such as `203.0.113.7/32`; empty to allow none."""

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys, and return the inventory."""

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """Return start and termination times by instance ID, omitting instances that the cloud no longer lists."""

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """Return the lifetimes of a cluster's NAT gateways and Elastic IPs that the cloud still reports."""

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[TaggedResource]:
        """Return all resources with the cluster's tag in these regions and IAM; fail if any search fails."""

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search each of these regions (`global`: IAM) for the cluster's tag, even if another search fails."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for resources with any cluster's tag."""

    def terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        """Terminate instances by their IDs and wait until the cloud confirms their termination."""

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set these tags on every given instance, volume and interface that lacks one of them."""

    def inspector(self) -> Inspector:
        """Return the inspector for resources that a recipe names."""

    def storage(self) -> StorageCloud:
        """Return the storage interface of this cloud."""

    def release(self, found: Sequence[TaggedResource]) -> None:
        """Delete tagged resources and wait until the cloud confirms their deletion."""


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


Connect = Callable[["Sequence[Node]", "Emit"], "list[Host]"]
"""Function that connects to all nodes, waiting while they boot, or raises a typed error."""


class StorageCloud(BackendIdentity, Protocol):
    """A cloud that creates storage."""

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user; empty if the user selected none."""

    def engine(self, record: StorageRecord) -> Engine:
        """Return the engine that creates this storage, configured with the storage's tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[TaggedStorage]:
        """Return all tagged storage in a region, or only the storage with this name."""

    def empty(self, stored: TaggedStorage) -> None:
        """Delete all objects in the storage's bucket, if it has a bucket."""

    def end(self, stored: TaggedStorage) -> list[str]:
        """Delete all parts of the storage and their data. Return one line per part that could not be deleted."""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume to an instance as its data volume `number`, counted from 0. Idempotent."""


class Inspector(Protocol):
    """Looks up resources in an account. A rejected request yields `unknown` and the reason."""

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL."""

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
