"""The AWS backend. The backend of the rehearsal cloud runs the same code with a different endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.aws.offers import CloudOffers
from cloudgpu.backends.base import (
    AccountQueries,
    Backend,
    CatalogSource,
    ClusterOperations,
    Context,
    ImageStore,
    StorageOperations,
    Sweep,
)
from cloudgpu.backends.quota_headroom import QuotaCloud, QuotaHeadroom
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.targets import Target

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3 or paramiko.
    from pathlib import Path

    from cloudgpu.backends.aws.account import AwsAccount, CloudContext
    from cloudgpu.backends.environment import BackendEnvironment
    from cloudgpu.backends.lifecycle.launch_request import Requester
    from cloudgpu.backends.lifecycle.results import ResourceForecast
    from cloudgpu.backends.node_connections import NodeCarriers, NodeConnections
    from cloudgpu.clock import Clock
    from cloudgpu.launch.inventory import Node
    from cloudgpu.paths import Home
    from cloudgpu.plan.plan import Plan
    from cloudgpu.run.data.copies import RemoteFile, S3Service
    from cloudgpu.run.progress import Emit
    from cloudgpu.run.registry_logins import RegistryLogin
    from cloudgpu.ssh.base import Host


class AwsBackend(Backend):
    """Clusters of EC2 instances in one account.

    Methods import what uses boto3 or paramiko: an offline plan and commands that only read records need neither.
    """

    def __init__(
        self,
        names: tuple[Target, str],
        home: Home,
        clock: Clock,
        open_cloud: Callable[[], AwsAccount],
        open_connections: Callable[[], NodeConnections],
    ) -> None:
        """Prepare the backend without connecting to anything.

        Args:
            names: The target, and the backend's name in messages.
            home: The state home, for cached quotas and recent capacity failures.
            clock: The clock.
            open_cloud: Connects to the account. Called once, when the account is first needed.
            open_connections: Returns the SSH connections to nodes. Called once, when SSH is first needed.
        """
        self._target, self._description = names
        self._home, self._clock = home, clock
        self._open_cloud, self._open_connections = open_cloud, open_connections
        self._cloud: AwsAccount | None = None
        self._node_connections: NodeConnections | None = None
        self._lock = Lock()

    @property
    def target(self) -> Target:
        """Target of the backend, `aws` or `rehearsal`."""
        return self._target

    @property
    def description(self) -> str:
        """Name of the backend in messages."""
        return self._description

    @property
    def cloud(self) -> AwsAccount:
        """The cloud account. It is opened once, even if several threads request it at the same time."""
        with self._lock:
            if self._cloud is None:
                self._cloud = self._open_cloud()
            return self._cloud

    @property
    def _connections(self) -> NodeConnections:
        with self._lock:
            if self._node_connections is None:
                self._node_connections = self._open_connections()
            return self._node_connections

    @property
    def endpoint(self) -> str:
        """ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS."""
        return self.cloud.endpoint

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        return self.cloud.account()

    def for_deletion(self) -> Backend:
        """Let `account` query other regions if the configured region fails, and return this backend."""
        self.cloud.for_deletion()
        return self

    def clusters(self, context: Context) -> ClusterOperations:
        """Return the operations on clusters, which use the records and the ledger of `context`."""
        from cloudgpu.backends.aws.clusters.operations import CloudClusters  # noqa: PLC0415 - see the class

        return CloudClusters(self.context(context))

    def context(self, context: Context) -> CloudContext:
        """Return a copy of the context that also contains the cloud account."""
        from cloudgpu.backends.aws.account import CloudContext  # noqa: PLC0415 - see the class

        return CloudContext(**{field.name: getattr(context, field.name) for field in fields(Context)}, cloud=self.cloud)

    def offers(self, *, offline: bool) -> CloudOffers:
        """Return the source of the account's zones, images, storage and quotas; of cached quotas only if `offline`."""
        headroom = QuotaHeadroom(self._home, self._clock)
        if offline:
            return CloudOffers(self.target, None, headroom, None)
        return CloudOffers(self.target, lambda: self.cloud, headroom, Cooldowns(self._home, self._clock))

    def preview(self, plan: Plan, name: str, requester: Requester) -> Sequence[ResourceForecast]:
        """Return the resources that `up` would create for the plan's first candidate. Changes nothing."""
        from cloudgpu.backends.aws.clusters.operations import forecast  # noqa: PLC0415 - see the class

        return forecast(plan, name, cloud=self.cloud, requester=requester, home=self._home, clock=self._clock)

    def storage(self, context: Context, team: str) -> StorageOperations:
        """Return the operations on storage that outlives clusters."""
        from cloudgpu.backends.aws.storage_manager import StorageManager  # noqa: PLC0415 - see the class

        return StorageManager(self.cloud, context, team)

    def sweep(self, context: Context, default_region: str) -> Sweep:
        """Return the operations that find and delete leftover resources by their tags."""
        from cloudgpu.backends.aws.sweep import AccountSweep  # noqa: PLC0415 - see the class

        return AccountSweep(self.context(context), self.cloud.images, default_region)

    def quotas(self) -> QuotaCloud:
        """Return the source of quotas and running vCPUs."""
        return self.cloud

    def account_queries(self) -> AccountQueries:
        """Return the queries about the account that `doctor` makes, in the configured region."""
        return self.cloud.queries

    def registry_login(self, region: str) -> RegistryLogin:
        """Return a login for the ECR registries of a region."""
        return self.cloud.registry_login(region)

    def check_access(self) -> None:
        """Check that nodes will be reachable through the configured jump host or Session Manager."""
        self._connections.check()

    def carriers(self) -> NodeCarriers:
        """Return the connectors for nodes behind a jump host or Session Manager."""
        return self._connections.carriers

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        """Connect to all nodes of a cluster, waiting while they boot."""
        return self._connections.connect(nodes, emit)

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that no longer exist."""
        return self.cloud.instance_states(region, instance_ids)

    def console_output(self, region: str, instance_id: str) -> str:
        """Return the last 64 KiB of an instance's console output."""
        return self.cloud.console(region, instance_id)

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""
        return self.cloud.put_objects(url, source)

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with presigned URLs."""
        return self.cloud.objects(url, expires_s=expires_s)

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""
        return self.cloud.bucket_service(url)

    def catalog_source(self) -> CatalogSource:
        """Return the source from which `catalog refresh` reads types, prices, images and quotas."""
        return self.cloud.catalog

    def images(self) -> ImageStore:
        """Return the store of the account's machine images."""
        return self.cloud.images


def open_backend(environment: BackendEnvironment) -> AwsBackend:
    """Return the backend of the caller's AWS account."""

    def open_cloud() -> AwsAccount:
        from cloudgpu.backends.aws.account import connect_aws  # noqa: PLC0415 - see the class

        return connect_aws(environment.settings, environment.environ, environment.clock, environment.calls)

    return backend_of("aws", "AWS", environment, open_cloud)


def backend_of(
    target: Target,
    description: str,
    environment: BackendEnvironment,
    open_cloud: Callable[[], AwsAccount],
) -> AwsBackend:
    """Return the backend of an account. Its SSH connections use Session Manager for nodes that require it."""

    def open_connections() -> NodeConnections:
        from cloudgpu.backends.aws.session_manager import node_connections  # noqa: PLC0415 - see the class

        return node_connections(environment, lambda: backend.cloud)

    backend = AwsBackend((target, description), environment.home, environment.clock, open_cloud, open_connections)
    return backend
