"""The AWS backend. The backend of the rehearsal cloud runs the same code with a different endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from cloudgpu.backends.base import (
    AccountQueries,
    Backend,
    CatalogSource,
    ClusterOperations,
    Context,
    ImageStore,
    Inspector,
    Offers,
    StorageOperations,
    Sweep,
)
from cloudgpu.backends.billing.retained_billing import storage_monthly_usd as monthly_usd
from cloudgpu.backends.quota_headroom import QuotaCloud, QuotaHeadroom, headroom_by_quota
from cloudgpu.catalog import Catalog
from cloudgpu.plan import planner_input
from cloudgpu.plan.network_access import GATEWAYS
from cloudgpu.plan.plan import Quotes, StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import Seen, possibly_existing_storage
from cloudgpu.recipe.schema import Recipe
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
    from cloudgpu.cloud import TaggedStorage
    from cloudgpu.launch.inventory import Node
    from cloudgpu.paths import Home
    from cloudgpu.plan.plan import Plan
    from cloudgpu.run.dataset_copies import RemoteFile, S3Service
    from cloudgpu.run.progress import Emit
    from cloudgpu.run.registry_logins import RegistryLogin
    from cloudgpu.ssh.base import Host


@dataclass(frozen=True)
class CloudOffers(Offers):
    """The zones, images, storage, quotas and recent capacity failures of one cloud account.

    Attributes:
        open_cloud: Connects to the account, once for all queries; None when planning offline.
        cooldowns: Candidates with a recent capacity failure, which are tried last; None when planning offline.
    """

    target: Target
    open_cloud: Callable[[], AwsAccount] | None
    quota_headroom: QuotaHeadroom
    cooldowns: Cooldowns | None

    @cached_property
    def _cloud(self) -> AwsAccount | None:
        return None if self.open_cloud is None else self.open_cloud()

    def usable_regions(self, catalog: Catalog) -> tuple[str, ...]:
        """Return the catalog regions that the account can use; every catalog region when offline."""
        if self._cloud is None:
            return tuple(catalog.regions)
        enabled = set(self._cloud.regions())
        return tuple(region for region in catalog.regions if region in enabled)

    def known_regions(self, recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[str, ...]:
        """Return the requested regions that are in the catalog."""
        return tuple(planner_input.known_regions(recipe, catalog, default_region))

    def inspector(self) -> Inspector | None:
        """Return an `Inspector` for the resources that a recipe names, or None when offline."""
        return None if self._cloud is None else self._cloud.queries

    def quote(self, inputs: PlannerInput) -> PlannerInput:
        """Add zones, prices, images, storage, addresses, cooldowns and quotas. When offline, add only cached quotas."""
        known = self.known_regions(inputs.recipe, inputs.catalog, inputs.default_region)
        enabled = inputs.quotes.lookups.enabled_regions
        # Do not query regions that are not enabled: AWS would reject the credentials. A plan rule excludes the regions.
        usable = tuple(region for region in known if enabled is None or region in enabled)
        if self._cloud is None:
            headroom = self.quota_headroom.cached(self.target, known)
            return replace(inputs, quotes=replace(inputs.quotes, quotas=headroom_by_quota(headroom)))
        quotes = _with_cloud_quotes(inputs, self._cloud, usable)
        if self.cooldowns is not None:
            quotes = replace(quotes, refused=self.cooldowns.recent(self._cloud))
        inputs = _with_missing_prices(replace(inputs, quotes=quotes), self._cloud, usable)
        headroom = self.quota_headroom.asked(self._cloud, usable)
        return replace(inputs, quotes=replace(inputs.quotes, quotas=headroom_by_quota(headroom)))


def _with_missing_prices(inputs: PlannerInput, cloud: AwsAccount, regions: Sequence[str]) -> PlannerInput:
    """Read the prices that the catalog lacks from the price list. A failed request is the reason of an exclusion."""
    pairs = planner_input.prices_to_query(inputs, regions)
    if not pairs:
        return inputs
    found = cloud.on_demand_prices(pairs)
    prices = {pair: usd for pair, usd in found.items() if not isinstance(usd, str)}
    unknown = {pair: why for pair, why in found.items() if isinstance(why, str)}
    return replace(
        inputs,
        catalog=inputs.catalog.with_prices(prices, inputs.today),
        quotes=replace(inputs.quotes, prices_unknown=unknown),
    )


def _with_cloud_quotes(inputs: PlannerInput, cloud: AwsAccount, regions: Sequence[str]) -> Quotes:
    """Return what a recipe needs in these regions: zones, images, root disks, storage, addresses and the reservation.

    The plan contains image IDs rather than SSM parameters, so that a newer image does not change a saved plan.
    """
    recipe, catalog, default = inputs.recipe, inputs.catalog, inputs.default_region
    offers = [offer for offer in planner_input.offers_to_query(recipe, catalog, default) if offer[1] in regions]
    parameters = [image for image in planner_input.images_to_resolve(recipe, catalog, default) if image[1] in regions]
    images = cloud.image_ids(parameters)
    fixed = [(recipe.resources.image or "", region) for region in regions]
    wanted = [(image, region) for image, region in fixed if image.startswith("ami-")]
    wanted += [(image, region) for (_, region), image in images.items()]
    # A parameter that was not resolved is read again, because only that tells whether it is missing or unreadable.
    wanted += [parameter for parameter in parameters if parameter not in images]
    described = cloud.machine_images(tuple(dict.fromkeys(wanted)))
    quotes = replace(
        cloud.quotes(offers),
        images=images,
        machine_images=described,
        root_disks={key: seen.root_gib for key, seen in described.items() if seen.root_gib},
        storage=find_existing_storage(cloud, recipe, regions),
        lookups=inputs.quotes.lookups,
    )
    if recipe.resources.reservation:
        reservation = cloud.reservation(recipe.resources.reservation, regions)
        quotes = replace(quotes, reservation=reservation.found, asked_at=reservation.asked_at)
    if not inputs.network.create_vpc and inputs.network.public_address not in GATEWAYS:
        quotes = replace(quotes, networks=cloud.networks(regions, inputs.network))
    limited = planner_input.regions_needing_elastic_ips(recipe, catalog, default, inputs.network)
    limited_here = [region for region in limited if region in regions]
    return replace(quotes, free_addresses=cloud.free_addresses(limited_here)) if limited_here else quotes


def find_existing_storage(cloud: AwsAccount, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """Return the existing storage in these regions for each storage name that the recipe mounts."""
    names = [mount.name for mount in possibly_existing_storage(recipe)]
    if not names:
        return {}
    stored = [storage for region in regions for storage in cloud.storage.found(region)]
    return {name: tuple(_storage_seen(storage) for storage in stored if storage.name == name) for name in names}


def _storage_seen(storage: TaggedStorage) -> StorageSeen:
    return StorageSeen(
        name=storage.name,
        kind=storage.kind,
        region=storage.region,
        zone=storage.data.zone if storage.data else "",
        ready=storage.data is not None and storage.data.ready,
        owner=storage.tag("cloudgpu:owner"),
        users=storage.users,
        monthly_usd=monthly_usd(storage),
        mount_zones=storage.mount_zones,
        vpc_id=storage.vpc_id,
    )


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
