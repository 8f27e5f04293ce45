"""Interfaces between the lifecycle of clusters on AWS and the code that calls AWS. Tests implement them in memory.

`CloudContext` combines them with the settings, state and events of a command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from cloudgpu.backends.base import Context
from cloudgpu.state.identifiers import BackendIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from cloudgpu.aws.ec2.billing_times import Lifetime
    from cloudgpu.aws.ec2.tagged_types import SearchResult
    from cloudgpu.aws.session.server_time import ServerTime
    from cloudgpu.aws.session.session import Clients, Session
    from cloudgpu.aws.storage.storage_tags import TaggedStorage
    from cloudgpu.backends.base import AccountQueries, ImageStore, Inspector
    from cloudgpu.backends.catalog_source import CatalogSource
    from cloudgpu.backends.tagged_resource import TaggedResource
    from cloudgpu.catalog.quotas import Quota
    from cloudgpu.engine.base import Engine
    from cloudgpu.engine.direct.operation_timeout import OnWait
    from cloudgpu.errors import CloudGpuError
    from cloudgpu.launch.inventory import Inventory
    from cloudgpu.plan.capacity import ReservationLookup
    from cloudgpu.plan.named_resources import MachineImageSeen
    from cloudgpu.plan.network_access import NetworkRequest
    from cloudgpu.plan.plan import Quotes
    from cloudgpu.plan.subnets import RegionNetwork
    from cloudgpu.run.containers.logins import RegistryLogin
    from cloudgpu.run.data.copies import RemoteFile, S3Service
    from cloudgpu.run.progress import Emit
    from cloudgpu.state.cluster_record import ClusterRecord
    from cloudgpu.state.storage_records import StorageRecord


class AccountClients(BackendIdentity, Protocol):
    """The API clients of one cloud account, in any region."""

    @property
    def time(self) -> ServerTime:
        """The time by the cloud's clock."""

    def clients(self, region: str) -> Session:
        """Return the API clients for a region."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""


class Cloud(BackendIdentity, Protocol):
    """The client of one cloud account, for all regions."""

    def images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the machine image for each (SSM parameter, region), omitting missing or unreadable parameters."""

    def machine_images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], MachineImageSeen]:
        """Return what AWS says about each (image ID or SSM parameter, region)."""

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Return the zones of the region that offer the instance type, for each (instance type, region) pair."""

    def on_demand_prices(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Decimal | str]:
        """Return the listed price in USD per hour, or the error message, of each (instance type, region) pair."""

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user, `direct` or `pulumi`; empty if the user selected none."""

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """Look up a capacity reservation in these regions, in order, and stop at the first region that lists it."""

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Return how many more Elastic IPs the account can allocate, by region; omit regions whose limit is unknown."""

    def networks(self, regions: Sequence[str], request: NetworkRequest) -> Mapping[str, RegionNetwork]:
        """Return the VPC and the subnets in which the nodes of each region would run."""

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota in a region, by quota key."""

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Map each quota to the running vCPUs in a region, or to None if unknown. Unused quotas are omitted."""

    def engine(self, record: ClusterRecord) -> Engine:
        """Return the engine that creates and deletes this cluster, configured with the cluster's tags and identity."""

    def caller_cidr(self) -> str:
        """Return the CIDR to allow on port 22, such as `203.0.113.7/32`; empty to keep the port closed."""

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys, and return the inventory."""

    @property
    def time(self) -> ServerTime:
        """The time by the cloud's clock, by which costs are counted."""

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """Return start and termination times by instance ID, omitting instances that the cloud no longer lists."""

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """Return the lifetimes of a cluster's NAT gateways and Elastic IPs that the cloud still reports."""

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[TaggedResource]:
        """Return all resources with the cluster's tag in these regions and IAM; fail if any search fails."""

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search these regions (`global`: IAM) for the cluster's tag. The result lists the errors of failed regions."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for resources with any cluster's tag."""

    def terminate(self, region: str, instance_ids: Sequence[str], on_wait: OnWait) -> None:
        """Terminate instances by their IDs and wait until the cloud confirms their termination."""

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set the tags on each given instance, volume or interface that lacks a tag or has a different value for it."""

    def inspector(self) -> Inspector:
        """Return the inspector for resources that a recipe names."""

    def storage(self) -> StorageCloud:
        """Return the client for the account's storage."""

    def for_deletion(self) -> object:
        """Let `account` query other regions if the configured region fails."""

    def catalog(self) -> CatalogSource:
        """Return the source from which `catalog refresh` reads types, prices, images and quotas."""

    def examined(self) -> AccountQueries:
        """Return the account queries for `doctor`, in the configured region."""

    def registry_login(self, region: str) -> RegistryLogin:
        """Return a login for the container registries of the account in a region."""

    def own_images(self) -> ImageStore:
        """Return the store of the account's machine images."""

    def clients_at(self, zone: str) -> Clients:
        """Return the API clients for the region that contains a zone."""

    @property
    def session_plugin(self) -> tuple[str, ...]:
        """Command to run instead of AWS's Session Manager plugin; empty for AWS."""

    def release(self, found: Sequence[TaggedResource], on_wait: OnWait) -> None:
        """Delete tagged resources and wait until the cloud confirms their deletion."""

    def console(self, region: str, instance_id: str) -> str:
        """Return the end of an instance's console output."""

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that no longer exist."""

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with presigned URLs."""

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""


class StorageCloud(BackendIdentity, Protocol):
    """The client of one cloud account for finding, creating, attaching and deleting storage."""

    @property
    def time(self) -> ServerTime:
        """The time by the cloud's clock, by which costs are counted."""

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user; empty if the user selected none."""

    def engine(self, record: StorageRecord) -> Engine:
        """Return the engine that creates this storage, configured with the storage's tags and identity."""

    def found(self, region: str, name: str = "") -> Sequence[TaggedStorage]:
        """Return all tagged storage in a region, or only the storage with this name."""

    def network(self, region: str, request: NetworkRequest) -> RegionNetwork:
        """Return the VPC and the subnets in which new file systems and the nodes of a region would be."""

    def require_bucket(self, region: str, url: str) -> None:
        """Raise an error if the bucket of an S3 URL does not exist or is not accessible."""

    def empty(self, stored: TaggedStorage) -> None:
        """Delete all objects in the storage's bucket, if it has a bucket."""

    def end(self, stored: TaggedStorage) -> list[str]:
        """Delete all parts of the storage and their data. Return one line per part that could not be deleted."""

    def role_hint(self, record: StorageRecord, cause: CloudGpuError) -> str:
        """Return what to do if a service-linked role that storage needs is missing; empty if none is missing."""

    def attach(self, region: str, volume_id: str, instance_id: str, number: int) -> None:
        """Attach a volume to an instance as its data volume `number`, counted from 0. Idempotent."""


@dataclass(frozen=True)
class CloudContext(Context):
    """A context whose backend launches instances.

    Attributes:
        cloud: Client of the backend's cloud account.
    """

    cloud: Cloud
