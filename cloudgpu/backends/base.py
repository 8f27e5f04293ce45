"""The interface through which the use cases access every backend.

`backends.factory` opens the backend of a target. docs/explanation/backends.md shows how to write a backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from cloudgpu.errors import UsageError
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.targets import cloud_options

if TYPE_CHECKING:
    # Only for annotations: importing the recipe schema and SSH would slow down commands that only read records.
    from datetime import datetime, timedelta
    from decimal import Decimal
    from pathlib import Path

    from cloudgpu.backends.billing.cost_ledger import CostLedger
    from cloudgpu.backends.lifecycle.launch_request import Requester
    from cloudgpu.backends.lifecycle.results import (
        DeletionResult,
        ExtensionResult,
        ProvisionedCluster,
        ResourceForecast,
    )
    from cloudgpu.backends.node_connections import NodeCarriers
    from cloudgpu.backends.quota_headroom import QuotaCloud
    from cloudgpu.backends.storage import CreatedStorage, DeletedStorage, RetainedResource, StorageRequest
    from cloudgpu.backends.sweep import SweepPlan, SweepRequest, SweepResult
    from cloudgpu.catalog import Catalog
    from cloudgpu.catalog.snapshot import TypeFacts
    from cloudgpu.clock import Clock
    from cloudgpu.cloud import Grant, Identity, OwnImage, PermissionResult, QuotaLimit, TaggedStorage
    from cloudgpu.launch.inventory import Node
    from cloudgpu.paths import Home
    from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence, ProfileSeen
    from cloudgpu.plan.network_access import NetworkRequest
    from cloudgpu.plan.plan import Plan
    from cloudgpu.plan.planner_input import PlannerInput
    from cloudgpu.plan.subnets import MountSubnets, RegionNetwork
    from cloudgpu.recipe.schema import Recipe
    from cloudgpu.run.dataset_copies import RemoteFile, S3Service
    from cloudgpu.run.progress import Emit
    from cloudgpu.run.registry_logins import RegistryLogin
    from cloudgpu.ssh.base import Host
    from cloudgpu.state.cluster_record import ClusterRecord
    from cloudgpu.state.record_store import RecordStore


class ClusterOperations(Protocol):
    """Creates, verifies, extends and deletes clusters, and updates the records and the ledger of one context."""

    def create(
        self,
        plan: Plan,
        name: str,
        requester: Requester,
        *,
        run_id: str = "",
        keep_on_failure: bool = False,
        retry_s: int = 0,
    ) -> ProvisionedCluster:
        """Create a cluster. If it already exists, return it as `reuse` does."""

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Return a running cluster after verifying that it matches the plan and that all of its nodes are running.

        The caller's address and the S3 locations of the plan's recipe are allowed, if they are not yet.
        """

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster and verify that nothing is left. Succeed if there is nothing to delete."""

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend a cluster's expiry on all nodes to a time or by a duration. `max_usd` replaces the recorded budget."""

    def authorize(self, record: ClusterRecord) -> ClusterRecord:
        """Allow SSH to the nodes from the caller's current address, and return the updated record.

        A backend without a firewall returns the record unchanged.
        """
        return record

    def record_costs(self, record: ClusterRecord) -> None:
        """Update a cluster's ledger rows: restore missing rows, and record when nodes were terminated."""


class Offers(Protocol):
    """The part of a backend that tells the planner what is available. Offline, it reads only local data."""

    def usable_regions(self, catalog: Catalog) -> Sequence[str]:
        """Return the catalog's regions that the account can use, or an empty sequence if the backend has no regions."""
        del catalog
        return ()

    def known_regions(self, recipe: Recipe, catalog: Catalog, default_region: str) -> Sequence[str]:
        """Return the catalog's regions in which the recipe may run; empty if the backend has no regions."""
        del recipe, catalog, default_region
        return ()

    def inspector(self) -> Inspector | None:
        """Return an `Inspector` for the resources that a recipe names; None if offline or if the backend has none."""
        return None

    def quote(self, inputs: PlannerInput) -> PlannerInput:
        """Add what the backend knows to the planner's input: zones, prices, images, quotas, storage or hosts."""


class Backend(BackendIdentity, Protocol):
    """A cloud account or a set of machines on which clusters run.

    The methods that raise `UsageError` here are optional. A backend without the feature inherits the method.
    """

    @property
    def description(self) -> str:
        """Name of the backend in messages, such as `self-managed hosts`."""

    def for_deletion(self) -> Backend:
        """Return this backend, configured so that a failure in one region does not stop deletion in other regions."""
        return self

    def clusters(self, context: Context) -> ClusterOperations:
        """Return the operations on clusters, which use the records and the ledger of `context`."""

    def offers(self, *, offline: bool) -> Offers:
        """Return the source of the planner's input. With `offline`, it queries neither a cloud nor a host."""

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        """Connect to all nodes of a cluster, waiting while they boot. Raise `ConnectError` if a node is unreachable."""

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that no longer exist."""

    def console_output(self, region: str, instance_id: str) -> str:
        """Return the end of a node's console output; empty if the backend has no consoles."""
        del region, instance_id
        return ""

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""
        del source
        self.lack(f"upload to {url}")

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with presigned URLs."""
        del expires_s
        self.lack(f"dataset {url}")

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""
        self.lack(f"bucket {url}")

    def catalog_source(self) -> CatalogSource:
        """Return the source from which `catalog refresh` reads types, prices, images and quotas."""
        self.lack("catalog refresh")

    def images(self) -> ImageStore:
        """Return the store of the account's machine images."""
        self.lack("machine images")

    def preview(self, plan: Plan, name: str, requester: Requester) -> Sequence[ResourceForecast]:
        """Return the resources that `up` would create for the plan's first candidate. Changes nothing."""
        del plan, name, requester
        self.lack("--resources")

    def storage(self, context: Context, team: str) -> StorageOperations:
        """Return the operations on storage that outlives clusters. `team` is billed for new storage."""
        del context, team
        self.lack("storage")

    def sweep(self, context: Context, default_region: str) -> Sweep:
        """Return the operations that find and delete leftover resources by their tags."""
        del context, default_region
        self.lack("sweep")

    def quotas(self) -> QuotaCloud:
        """Return the source of quotas and running vCPUs."""
        self.lack("quotas")

    def account_queries(self) -> AccountQueries:
        """Return the queries about the account that `doctor` makes."""
        self.lack("doctor")

    def registry_login(self, region: str) -> RegistryLogin:
        """Return a login for the container registries of the account in a region."""
        self.lack(f"container images in ECR in {region}")

    def check_access(self) -> None:
        """Check that nodes will be reachable, before any are launched."""
        return

    def carriers(self) -> NodeCarriers:
        """Return the connectors for nodes that the caller cannot reach directly, for `ssh`, `exec` and `tunnel`."""
        self.lack("SSH access")

    def lack(self, feature: str) -> NoReturn:
        """Reject a feature that this backend does not have.

        Raises:
            UsageError: Always.
        """
        message = f"{feature}: not available on {self.description}"
        raise UsageError(message, hint=f"use {cloud_options(besides=self.target)}")


class AccountQueries(Protocol):
    """Queries about an account, for `doctor`."""

    def identity(self) -> Identity:
        """Return the caller's identity."""

    def permission_results(self, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
        """Return one result for each action in the grants: whether the identity is allowed to perform the action."""

    def quotas(self) -> Sequence[QuotaLimit]:
        """Return the vCPU quotas for GPU instances."""

    def service_roles(self) -> Sequence[str]:
        """Return the names of the account's service-linked roles."""

    def network(self, request: NetworkRequest) -> RegionNetwork:
        """Return the VPC, with its subnets, that new clusters would use."""

    def zones(self) -> Sequence[str]:
        """Return the region's zones, except local and Wavelength zones."""

    def is_region_enabled(self) -> bool | None:
        """Return False if the account has not enabled the region, or None if that is unknown."""


class Sweep(Protocol):
    """Searches an account for resources with cloudgpu's tags and deletes the leftovers."""

    def plan(self, regions: Sequence[str], request: SweepRequest) -> SweepPlan:
        """Search these regions, or by default every enabled region, and decide what may be deleted."""

    def delete_clusters(self, plan: SweepPlan) -> SweepResult:
        """Delete the plan's clusters concurrently. A failure does not stop the other deletions."""

    def delete_storage(self, plan: SweepPlan, clusters: SweepResult) -> SweepResult:
        """Delete the plan's storage, except storage whose cluster could not be deleted according to `clusters`."""

    def check_recorded(self, swept: SweepResult) -> None:
        """Raise an error if the deletions could not be recorded."""


class StorageOperations(Protocol):
    """Creates, lists and deletes storage, and updates the records and the ledger of one context."""

    def choose_subnets(self, request: StorageRequest, network: NetworkRequest) -> MountSubnets | None:
        """Return the subnets for a new file system; None for other storage, and for storage that already exists."""

    def create(self, request: StorageRequest) -> CreatedStorage:
        """Create storage or finish an interrupted creation. Existing storage that matches is left unchanged."""

    def rows(self, region: str) -> Sequence[RetainedResource]:
        """Return the storage in `region` and in every region that the storage records list."""

    def find_deletable(self, name: str, region: str, *, delete_data: bool) -> TaggedStorage | None:
        """Return the existing storage for the confirmation prompt, or None if there is none."""

    def delete(self, name: str, region: str, *, delete_data: bool) -> DeletedStorage:
        """Delete storage with its data and verify that nothing is left."""

    def check_recorded(self, name: str) -> None:
        """Raise an error if the deletion could not be recorded."""


class CatalogSource(Protocol):
    """Source of a target's catalog data. Every method raises `CloudGpuError` if its request fails."""

    def regions(self) -> Sequence[str]:
        """Return every region that the account can use."""

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of a region that offer each GPU instance type, by instance type."""

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand price in USD per hour of every instance type in the region's price list."""

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and the highest recent spot price in USD per hour of each instance type."""

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image ID stored in each SSM parameter."""

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""


class CloudTime(Protocol):
    """The time by a cloud's clock, by which costs are counted."""

    def now(self) -> datetime:
        """Return the time by the cloud's clock, in UTC."""

    def difference_to_report(self) -> str:
        """Return a message if this machine's clock differs by much, once; otherwise an empty text."""


class ImageStore(Protocol):
    """The machine images of one account."""

    @property
    def time(self) -> CloudTime:
        """The time by the cloud's clock, by which costs are counted."""

    def found(self, region: str, name: str = "") -> Sequence[OwnImage]:
        """Return a region's images and the snapshots of deleted images: all of them, or only those named `name`."""

    def make(self, region: str, instance_id: str, name: str, tags: dict[str, str]) -> str:
        """Start creating an image from an instance, and return the image ID."""

    def ready(self, region: str, name: str) -> OwnImage:
        """Wait until the image is available, and return it."""

    def end(self, image: OwnImage) -> None:
        """Delete an image and its snapshots."""


class Inspector(Protocol):
    """Looks up resources in an account. If a lookup fails, its result is `unknown` with the reason."""

    def dataset(self, url: str) -> DatasetSeen:
        """Return a summary of the objects under an S3 URL."""

    def named(self, kind: NamedKind, name: str, region: str) -> tuple[Presence, str]:
        """Return whether a named resource exists and, if unknown, the reason. Roles do not depend on the region."""

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""

    def profile(self, name: str, *, session_manager: bool) -> ProfileSeen | None:
        """Return whether the caller may launch nodes with an instance profile, and what it lacks; None if not found.

        `session_manager`: also check the actions with which nodes connect to Session Manager.
        """

    def denied_role_actions(self, actions: Sequence[str], boundary_arn: str) -> tuple[str, ...]:
        """Return which of these IAM actions the caller's policies deny for cloudgpu's roles; empty if unknown."""

    def service_roles(self) -> Sequence[str]:
        """Return the names of the account's service-linked roles."""


@dataclass(frozen=True)
class Context:
    """The context of one command: its backend, ledger, records, state home, clock, owner and event sink.

    Attributes:
        owner: Name of the calling user.
        emit: Function that receives progress events.
    """

    backend: Backend
    ledger: CostLedger
    records: RecordStore
    home: Home
    clock: Clock
    owner: str
    emit: Emit

    @property
    def clusters(self) -> ClusterOperations:
        """The operations on clusters."""
        return self.backend.clusters(self)
