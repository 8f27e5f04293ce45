"""Interfaces that the use cases depend on. `cli/context/wiring.py` provides the implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cloudgpu.state.identity import BackendIdentity

if TYPE_CHECKING:
    # Only types: a command that reads records must not pay for the recipe schema and the SSH room.
    from datetime import datetime
    from pathlib import Path

    from cloudgpu.aws.ec2.billing_times import Lifetime
    from cloudgpu.aws.ec2.tagged_types import SearchResult
    from cloudgpu.aws.storage.storage_tags import Stored
    from cloudgpu.backends.events import Emit
    from cloudgpu.catalog.quotas import Quota
    from cloudgpu.engine.base import Engine
    from cloudgpu.launch.inventory import Inventory, Node
    from cloudgpu.ledger.entry import EntryState, LedgerEntry, Part, Spending
    from cloudgpu.ledger.report import By, CostReport
    from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence
    from cloudgpu.plan.plan import Quotes
    from cloudgpu.plan.reservations import ReservationLookup
    from cloudgpu.run.files import RemoteFile, S3Service
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
        """The cloud's resource ID."""

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
        """The cloud's name for its state; empty if it has none."""

    @property
    def since(self) -> datetime | None:
        """Launch or creation time; None if the cloud does not report it."""

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
    """What a run needs from the place where it runs: launched instances or self-managed hosts."""

    def nodes_alive(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance; `terminated` if it no longer exists."""

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL unless it is already there, and return the bytes sent."""

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List an S3 URL with presigned addresses."""

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that read it directly."""


class Cloud(Backend, Protocol):
    """A cloud that launches instances."""

    def images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the machine image that each (SSM parameter, region) names, without those that cannot be read."""

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Return the zones that offer each (instance type, region)."""

    @property
    def engine_asked_for(self) -> str:
        """Engine selected by the user, `direct` or `pulumi`; empty if none was."""

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """Look up a capacity reservation in the first of these regions that has it."""

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Return how many more Elastic IPs the account can allocate, by region, without regions that cannot be read."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota in a region, by quota key."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Return the vCPUs running in a region by quota, regardless of who launched them. Idle quotas are left out."""

    def engine(self, record: ClusterRecord) -> Engine:
        """Return the engine for this cluster's program, with the cluster's tags and identity."""

    def caller_cidr(self) -> str:
        """Return the only address that may reach port 22, as `a.b.c.d/32`."""

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys."""

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """Return when instances started and ended, by ID, without those that the cloud no longer lists."""

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """Return when the NAT gateways and Elastic IPs of a cluster started and ended, if still known."""

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[TaggedResource]:
        """Return everything that carries the cluster's tag in these regions and in IAM; all of them have to answer."""

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search each of these regions (`global`: IAM) for the cluster's tag, whatever happens in another."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for the tag of any cluster."""

    def terminate(self, region: str, instance_ids: Sequence[str]) -> None:
        """Terminate instances by their ids and wait until the cloud confirms it."""

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set these tags on instances, volumes and interfaces that do not have them yet."""

    def inspector(self) -> Inspector:
        """Return the inspector for resources that a recipe names."""

    def storage(self) -> StorageCloud:
        """Return the storage of this cloud."""

    def release(self, found: Sequence[TaggedResource]) -> None:
        """Delete tagged resources and wait for confirmation."""


class CostLedger(Protocol):
    """The ledger of resources that cost money."""

    def open(self, spending: Spending) -> None:
        """Write a row durably. Opening the same entry ID again has no effect."""

    def launched(self, entry_id: str, instance_ids: Sequence[str], at: datetime) -> None:
        """Record the instances that a launch call returned."""

    def extend(self, entry_id: str, until: datetime, at: datetime) -> None:
        """Record a later expiry."""

    def close(self, entry_id: str, at: datetime) -> None:
        """Close an entry after the cloud confirmed the deletion."""

    def part_ended(self, entry_id: str, part: Part, at: datetime, *, estimated: bool = False) -> None:
        """Record when a part of an open entry ended. The first end counts."""

    def run_started(self, run_id: str, cluster: str, recipe: str, owner: str, team: str, at: datetime) -> None:
        """Record that a run started to use a cluster."""

    def run_ended(self, run_id: str, state: str, at: datetime) -> None:
        """Record that a run ended."""

    def entries(
        self, *, cluster: str | None = None, state: EntryState | None = None, since: datetime | None = None
    ) -> tuple[LedgerEntry, ...]:
        """Return the rows, oldest first."""

    def report(self, *, by: By, now: datetime, since: datetime | None = None) -> CostReport:
        """Return the bill."""


Connect = Callable[["Sequence[Node]", "Emit"], "list[Host]"]
"""Connect to every node, waiting while they boot; all or a typed error."""


class StorageCloud(BackendIdentity, Protocol):
    """A cloud that creates storage."""

    @property
    def engine_asked_for(self) -> str:
        """Engine selected by the user; empty if none was."""

    def engine(self, record: StorageRecord) -> Engine:
        """Return the engine for this storage's program, with the storage's tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[Stored]:
        """Return the resources with storage tags in a region, of one name or of all."""

    def empty(self, stored: Stored) -> None:
        """Delete what its bucket holds, where it has one."""

    def end(self, stored: Stored) -> list[str]:
        """End every part, data included; returns a line for each that would not end."""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume to an instance as its `number`th. Does nothing if it is already attached."""


class Inspector(Protocol):
    """Looks up resources in an account. A refused request yields `unknown` and the reason."""

    def dataset(self, url: str) -> DatasetSeen:
        """Return what is stored under an S3 URL."""

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists, and the reason if that is unknown. Roles belong to no region."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
