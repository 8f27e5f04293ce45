"""One account, on AWS or on the rehearsal cloud: its identity, and queries and changes in all of its regions."""

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final, TypeVar

from cloudgpu.aws import prices_and_quotas, s3
from cloudgpu.aws.ec2 import billing_times, instances, machine_images, named_resources, ssh_access, subnets, tag_search
from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.aws.ec2.tagging import SHUTDOWN_S, SearchResult, add_missing_tags
from cloudgpu.aws.session.recording import recorder_for
from cloudgpu.aws.session.session import ApiCall, CloudEndpoint, RegionSessions, ServerTime, Session, connect
from cloudgpu.backends.aws.engines import Engines
from cloudgpu.backends.aws.new_nodes import AddressesOf, NewNodes, own_address
from cloudgpu.backends.aws.queries import AwsCatalog, AwsImages, AwsQueries, RegistryLogins
from cloudgpu.backends.aws.storage import AwsStorage
from cloudgpu.backends.base import Context
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.catalog.prices_and_quotas import Quota
from cloudgpu.clock import Clock
from cloudgpu.cloud import GLOBAL, TaggedResource
from cloudgpu.engine.base import Engine
from cloudgpu.engine.config import cluster_program_config
from cloudgpu.engine.direct.deployment import OnWait, WatchedClock, ignore_wait
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, TeardownError, decisive_cause
from cloudgpu.plan.capacity import ReservationLookup
from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.rehearsal.session_plugin import PLUGIN
from cloudgpu.run.dataset_copies import RemoteFile, S3Service
from cloudgpu.settings import Settings
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.targets import Target, is_simulated
from cloudgpu.workers import Workers

_T = TypeVar("_T")
_MAX_PARALLEL: Final = 8
_ALTERNATIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "cn": ("cn-north-1", "cn-northwest-1"),
    "us-gov": ("us-gov-west-1", "us-gov-east-1"),
    "": ("us-east-1", "us-west-2", "eu-west-1"),
}
"""Prefix of a partition's region names -> regions for account-wide queries that fail in the configured region."""


@dataclass(frozen=True)
class CloudTarget:
    """The cloud to connect to.

    Attributes:
        endpoint: ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS.
        environ: The caller's environment, for the programs that an engine runs.
    """

    target: Target
    connection: CloudEndpoint
    endpoint: str
    environ: Mapping[str, str] = field(default_factory=dict)


class AwsAccount:
    """One account on AWS or the rehearsal cloud.

    A failure in one region does not affect the other regions.

    Attributes:
        target: Target of the cloud, `aws` or `rehearsal`.
        endpoint: ID that distinguishes this endpoint from other endpoints with the same account ID; empty for AWS.
        time: The time by the cloud's clock, by which costs are counted.
        session: The session of each region, which is opened on first use.
        new_nodes: Reads the addresses and host keys of launched instances.
        storage: The storage of the account.
        images: The machine images of the account.
        catalog: The source from which `catalog refresh` reads.
        queries: The account queries for `doctor` and for the resources that a recipe names.
        registry_login: Function that returns a login for the ECR registries of a region.
    """

    def __init__(
        self, where: CloudTarget, addresses_of: AddressesOf, settings: Settings, clock: Clock, calls: ApiCallLog
    ) -> None:
        recorder = recorder_for(where.environ)
        profile = settings.aws_profile or None
        self.time = ServerTime(clock)

        def called(call: ApiCall) -> None:
            self.time.update(call.date)
            calls(call)

        self.session: Callable[[str], Session] = RegionSessions(
            lambda region: connect(where.connection, region, profile, called, recorder), clock
        )
        self.target: Target = where.target
        self.endpoint = where.endpoint
        self._connection = where.connection
        self._settings = settings
        self._clock = clock
        self._account = ""
        self._deleting = False
        simulated = is_simulated(where.target)
        self._engines = Engines(settings, self.session, where.connection, where.environ, clock)
        self.new_nodes = NewNodes(self.session, addresses_of, settings, clock, simulated)
        self.storage = AwsStorage(self.session, self._engines, clock, simulated)
        self.images = AwsImages(self.session, self.time, clock)
        self.catalog = AwsCatalog(self.session, self.regions, clock)
        self.queries = AwsQueries(self.session, settings.region, self.regions)
        self.registry_login = RegistryLogins(self.session, clock)

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        if not self._account:
            if self._deleting:
                self._account = self.query_any_region(lambda session: session.account())
            else:
                self._account = self.session(self._settings.region).account()
        return self._account

    def for_deletion(self) -> "AwsAccount":
        """Let `account` query other regions if the configured region fails, and return this account.

        A deletion must continue as long as any region responds, but a launch must stop at the first error.
        """
        self._deleting = True
        return self

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return self.query_any_region(tag_search.enabled_regions)

    def query_any_region(self, query: Callable[[Session], _T]) -> _T:
        """Run an account-wide query in the configured region and, if the query fails, in other regions.

        Calls in a region that is not enabled fail as if the credentials were invalid.
        """
        try:
            return query(self.session(self._settings.region))
        except CloudError as err:
            if isinstance(err, AuthError) and not err.request_id:
                raise  # this machine has no usable credentials for any region
            for region in _alternatives(self._settings.region):
                try:
                    return query(self.session(region))
                except CloudError:
                    continue
            raise

    def image_ids(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the machine image for each (SSM parameter, region), omitting missing or unreadable parameters."""
        return machine_images.resolve_image_ids(self.session, wanted)

    def machine_images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], MachineImageSeen]:
        """Return what AWS says about each (image ID or SSM parameter, region)."""
        return machine_images.describe_images(self.session, wanted)

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Return the zones of the region that offer the instance type, for each (instance type, region) pair."""
        return instances.offered_zones(self.session, wanted)

    def on_demand_prices(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Decimal | str]:
        """Return the listed price in USD per hour, or the error message, of each (instance type, region) pair."""
        return prices_and_quotas.on_demand_or_error(self.session, pairs)

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """Look up a capacity reservation and return the result with the time of the lookup."""
        return ReservationLookup(
            named_resources.find_reservation(self.session, reservation_id, regions), self._clock.now()
        )

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Return how many more Elastic IPs the account can allocate, by region; omit regions whose limit is unknown."""
        return instances.free_addresses(self.session, regions)

    def networks(self, regions: Sequence[str], request: NetworkRequest) -> Mapping[str, RegionNetwork]:
        """Return the VPC and the subnets in which the nodes of each region would run."""
        return subnets.region_networks(self.session, regions, request, simulated=is_simulated(self.target))

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota in a region, by quota key."""
        return prices_and_quotas.vcpu_limits(self.session(region))

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Map each quota to the running vCPUs in a region, or to None if unknown. Unused quotas are omitted."""
        return prices_and_quotas.vcpus_in_use(self.session(region))

    @property
    def program_settings(self) -> Mapping[str, str]:
        """The cluster program's settings that the user chose: existing resources to use, and optional features."""
        return cluster_program_config(self._settings)

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user; empty if the user selected none."""
        return "" if self._settings.explain("engine").origin == "default" else self._settings.engine

    def engine(self, record: ClusterRecord) -> Engine:
        """Return the engine that creates and deletes this cluster, configured with the cluster's tags and identity."""
        return self._engines.engine(record.identity, cluster_tags(record))

    def caller_cidr(self) -> str:
        """Return the CIDR to allow on port 22: the configured one, this machine's address, or "" (Session Manager)."""
        if self._settings.ssh_cidr:
            return self._settings.ssh_cidr
        if self._settings.reach == "ssm":
            return ""  # Session Manager needs no open port
        return "127.0.0.1/32" if is_simulated(self.target) else own_address()

    def console(self, region: str, instance_id: str) -> str:
        """Return the last 64 KiB of an instance's console output."""
        return ssh_access.read_console(self.session(region), instance_id).text

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that AWS no longer lists."""
        states = dict.fromkeys(instance_ids, "terminated")
        if instance_ids:
            described = instances.describe(self.session(region), list(instance_ids))
            states |= {instance.id: instance.state for instance in described}
        return states

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """Return start and termination times by instance ID, omitting instances that AWS no longer lists."""
        return billing_times.instance_lifetimes(self.session(region), instance_ids)

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """Return the lifetimes of a cluster's NAT gateways and Elastic IPs that AWS still reports."""
        return billing_times.network_resource_lifetimes(self.session(region), token)

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[TaggedResource]:
        """Return all resources with the cluster's tag in these regions and IAM; fail if any search fails."""
        return self.search_each(cluster, (*regions, GLOBAL)).complete()

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search these regions (`global`: IAM) for the cluster's tag, or for any cluster's tag if the name is empty.

        The result contains the error of a region that cannot be searched.
        """

        def search_one(region: str) -> SearchResult:
            try:
                if region == GLOBAL:
                    return tag_search.search_iam(self.session(self._settings.region), cluster)
                return tag_search.search_region(self.session(region), cluster)
            except CloudGpuError as err:
                return SearchResult(failures={region: err})

        result = SearchResult()
        for region_result in _in_parallel(search_one, tuple(dict.fromkeys(regions))):
            result = result.merged(region_result)
        return result

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for resources with any cluster's tag."""
        return self.search_each("", [region])

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set the tags on each given instance, volume or interface that lacks a tag or has a different value for it."""
        for region in sorted({resource.region for resource in found} - {GLOBAL}):
            here = [resource for resource in found if resource.region == region]
            add_missing_tags(self.session(region), here, tags)

    def terminate(self, region: str, instance_ids: Sequence[str], on_wait: OnWait = ignore_wait) -> None:
        """Terminate instances by their IDs and wait until AWS confirms their termination.

        `on_wait` is called every few seconds with the seconds since the start.
        """
        instances.terminate(self.session(region), self._watched_clock(on_wait), instance_ids)

    def release(self, found: Sequence[TaggedResource], on_wait: OnWait = ignore_wait) -> None:
        """Delete tagged resources in all regions in parallel and wait until AWS confirms their deletion.

        IAM resources are deleted last, when no region uses them anymore. `on_wait` is called every few seconds with the
        seconds since the start.
        """
        clock = self._watched_clock(on_wait)
        regional = [resource for resource in found if resource.region != GLOBAL]
        regions = sorted({resource.region for resource in regional})

        def work(region: str) -> CloudGpuError | None:
            return self._release_in(region, [resource for resource in regional if resource.region == region], clock)

        failures = [err for err in _in_parallel(work, regions) if err is not None]
        in_iam = [resource for resource in found if resource.region == GLOBAL]
        err = self._release_in(self._settings.region, in_iam, clock) if in_iam else None
        failures += [err] if err is not None else []
        if len(failures) == 1:
            raise failures[0]
        if failures:
            left = [line for err in failures for line in getattr(err, "left", (err.message,))]
            message = "; ".join(err.message for err in failures)
            raise TeardownError(message, left=left, hint="run the same command again") from decisive_cause(failures)

    def _watched_clock(self, on_wait: OnWait) -> WatchedClock:
        """Return a clock that also limits all waits of one deletion together."""
        limit_s, hint = SHUTDOWN_S, "run the same command again"
        return WatchedClock(self._clock, what="the deletion", on_wait=on_wait, timeout_s=limit_s, hint=hint)

    def _release_in(self, region: str, found: Sequence[TaggedResource], clock: Clock) -> CloudGpuError | None:
        try:
            tag_search.release(self.session(region), found, clock)
        except CloudGpuError as err:
            return err
        return None

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""
        return s3.put_files(self.session(self._settings.region), url, source).sent_bytes

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with URLs presigned for the bucket's region."""
        clients = self.session(s3.bucket_region(self.session(self._settings.region), url))
        listed = s3.list_objects(clients, url)
        s3.check_readable(clients, url, listed[0].key)
        urls = s3.presign_urls(clients, url, [item.key for item in listed], expires_s)
        archived = s3.archived_objects(clients.client("s3"), s3.S3Location.parse(url), listed)
        return [
            RemoteFile(urls[item.key], item.relative, item.size, None, item.etag, archived.get(item.key, ""))
            for item in listed
        ]

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""
        return S3Service(s3.bucket_region(self.session(self._settings.region), url), self._connection.url)

    @property
    def session_plugin(self) -> tuple[str, ...]:
        """Command to run instead of AWS's Session Manager plugin; empty for AWS."""
        return (sys.executable, "-I", "-S", str(PLUGIN)) if is_simulated(self.target) else ()


def connect_aws(settings: Settings, environ: Mapping[str, str], clock: Clock, calls: ApiCallLog) -> AwsAccount:
    """Connect to AWS with the user's credentials. `AWS_ENDPOINT_URL` is ignored."""

    def addresses_of(found: Sequence[Instance], private: Set[str]) -> Mapping[str, tuple[str, int]]:
        at = {
            instance.id: instance.private_address if instance.id in private else instance.public_address
            for instance in found
        }
        return {instance_id: (address, 22) for instance_id, address in at.items() if address}

    return AwsAccount(CloudTarget("aws", CloudEndpoint(), "", environ), addresses_of, settings, clock, calls)


def cluster_tags(record: ClusterRecord) -> dict[str, str]:
    """Return the tags for a cluster's resources."""
    return {
        "cloudgpu:cluster": record.name,
        "cloudgpu:owner": record.identity.owner,
        "cloudgpu:team": record.identity.team,
        "cloudgpu:run": record.identity.run_id,
        "cloudgpu:expires-at": record.lifecycle.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cloudgpu:token": record.identity.token,
    }


def _in_parallel(work: Callable[[str], _T], regions: Sequence[str]) -> list[_T]:
    """Call `work` for all regions in parallel, and return the results in the order of the regions.

    A single region is processed without a thread, so that Ctrl-C can interrupt the call.
    """
    if len(regions) <= 1:
        return [work(region) for region in regions]
    with Workers(min(_MAX_PARALLEL, len(regions)), "region") as pool:
        return list(pool.map(work, regions))


def _alternatives(region: str) -> list[str]:
    """Return regions in the same partition that can be queried instead of this region."""
    partition = next((prefix for prefix in _ALTERNATIVES if prefix and region.startswith(f"{prefix}-")), "")
    return [other for other in _ALTERNATIVES[partition] if other != region]


@dataclass(frozen=True)
class CloudContext(Context):
    """A context whose backend launches instances.

    Attributes:
        cloud: The backend's cloud account.
    """

    cloud: AwsAccount
