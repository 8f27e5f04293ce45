"""The client of one cloud account, for AWS and for the rehearsal cloud."""

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from cloudgpu.aws.ec2 import billing_times, host_keys, instances, machine_images, named_resources, subnets
from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.aws.ec2.instances import Instance, launch_failure
from cloudgpu.aws.ec2.tagged_types import GLOBAL, FoundResource, SearchResult
from cloudgpu.aws.ec2.tagging import add_missing_tags
from cloudgpu.aws.pricing import offers, prices, quotas
from cloudgpu.aws.session.recording import recorder_for
from cloudgpu.aws.session.server_time import ServerTime
from cloudgpu.aws.session.session import ApiCall, CloudEndpoint, RegionSessions, Session, connect
from cloudgpu.aws.storage import objects
from cloudgpu.backends.api_log import ApiCallLog
from cloudgpu.backends.aws.account import AwsAccount, AwsImages, AwsInspector, RegistryLogins
from cloudgpu.backends.aws.addresses import (
    HEAD,
    own_address,
    private,
    public_address_setting,
    region_of,
    session_manager_addresses,
    uses_session_manager,
)
from cloudgpu.backends.aws.engines import Engines
from cloudgpu.backends.aws.host_key_wait import HostKeyWait
from cloudgpu.backends.aws.regions import AwsCatalog, AwsRegions
from cloudgpu.backends.aws.storage.cloud import AwsStorage
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.catalog.quotas import Quota
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Engine
from cloudgpu.engine.direct.operation_timeout import OnWait, ignore_wait
from cloudgpu.errors import CloudError
from cloudgpu.launch.inventory import ALIVE_STATES, Inventory, Node
from cloudgpu.plan.capacity import ReservationLookup
from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.rehearsal.session_plugin import PLUGIN
from cloudgpu.run.containers.logins import RegistryLogin
from cloudgpu.run.data.copies import RemoteFile, S3Service
from cloudgpu.run.progress import Emit, Note
from cloudgpu.settings import Settings
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.targets import Target, is_simulated
from cloudgpu.text import command
from cloudgpu.workers import Workers

_POLL_S = 0.5
_MAX_POLL_S = 10.0

_MAX_PARALLEL_CONSOLES = 8

Reach = Callable[[Sequence[Instance], Set[str]], Mapping[str, tuple[str, int]]]
"""Function that returns the SSH address and port by instance ID, omitting instances that have no address yet.

The second argument contains the IDs of the instances that have only a private address.
"""


@dataclass(frozen=True)
class CloudTarget:
    """The cloud to connect to.

    Attributes:
        identity: ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS.
        environ: The caller's environment, for the programs that an engine runs.
    """

    target: Target
    endpoint: CloudEndpoint
    identity: str
    environ: Mapping[str, str] = field(default_factory=dict)


class AwsCloud:
    """The client of one account on AWS or the rehearsal cloud. A region's session is created on first use."""

    def __init__(self, where: CloudTarget, reach: Reach, settings: Settings, clock: Clock, calls: ApiCallLog) -> None:
        recorder = recorder_for(where.environ)
        profile = settings.aws_profile or None
        self.time = ServerTime(clock)

        def called(call: ApiCall) -> None:
            self.time.update(call.date)
            calls(call)

        self._session = RegionSessions(lambda region: connect(where.endpoint, region, profile, called, recorder), clock)
        self._engines = Engines(settings, self._session, where.endpoint, where.environ, clock)
        self._regions = AwsRegions(self._session, settings.region, clock)
        self.target: Target = where.target
        self.endpoint = where.identity
        self._endpoint = where.endpoint
        self._settings = settings
        self._clock = clock
        self._reach = reach
        self._account = ""
        self._deleting = False
        self._registry_logins = RegistryLogins(self._session, clock)

    def account(self) -> str:
        """Return the account ID of the credentials in use."""
        if not self._account:
            ask = self._regions.query_any_region if self._deleting else self._regions.query_usual_region
            self._account = ask(lambda session: session.account())
        return self._account

    def for_deletion(self) -> "AwsCloud":
        """Let `account` query other regions if the configured region fails, and return this client.

        A deletion must continue as long as any region responds, but a launch must stop at the first error.
        """
        self._deleting = True
        return self

    def examined(self) -> AwsAccount:
        """Return the account queries for `doctor`, in the configured region."""
        return AwsAccount(self._session(self._settings.region))

    def images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
        """Return the machine image for each (SSM parameter, region), omitting missing or unreadable parameters."""
        return machine_images.resolve_image_ids(self._session, wanted)

    def machine_images(self, wanted: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], MachineImageSeen]:
        """Return what AWS says about each (image ID or SSM parameter, region)."""
        return machine_images.describe_images(self._session, wanted)

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Return the zones of the region that offer the instance type, for each (instance type, region) pair."""
        return offers.quotes(self._session, wanted)

    def on_demand_prices(self, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], Decimal | str]:
        """Return the listed price in USD per hour, or the error message, of each (instance type, region) pair."""
        return prices.on_demand_or_error(self._session, pairs)

    @property
    def requested_engine(self) -> str:
        """Engine selected by the user; empty if the user selected none."""
        return self._engines.asked_for

    def reservation(self, reservation_id: str, regions: Sequence[str]) -> ReservationLookup:
        """Look up a capacity reservation and return the result with the time of the lookup."""
        return ReservationLookup(
            named_resources.find_reservation(self._session, reservation_id, regions), self._clock.now()
        )

    def free_addresses(self, regions: Sequence[str]) -> Mapping[str, int]:
        """Return how many more Elastic IPs the account can allocate, by region; omit regions whose limit is unknown."""
        return offers.free_addresses(self._session, regions)

    def networks(self, regions: Sequence[str], request: NetworkRequest) -> Mapping[str, RegionNetwork]:
        """Return the VPC and the subnets in which the nodes of each region would run."""
        return subnets.region_networks(self._session, regions, request, simulated=is_simulated(self.target))

    def quota_limits(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota in a region, by quota key."""
        return quotas.vcpu_limits(self._session(region))

    def running_vcpus(self, region: str) -> Mapping[Quota, int | None]:
        """Map each quota to the running vCPUs in a region, or to None if unknown. Unused quotas are omitted."""
        return quotas.vcpus_in_use(self._session(region))

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

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys on its console; return the inventory.

        The limit is `boot_seconds`, or three times as long if EC2 posts the console output with a delay.
        """
        nodes: dict[str, Node] = {}
        delay_s = _POLL_S
        with HostKeyWait(self._settings.boot_seconds, self._clock, emit) as wait:
            while True:
                missing = [instance_id for instance_id in instance_ids if instance_id not in nodes]
                for node in self._ready_nodes(record, instance_ids, missing, wait):
                    nodes[node.instance_id] = node
                    text = f"{node.instance_id} is up at {node.address}, host key {node.host_keys[0]}"
                    emit(Note(text, node.index, detail=True))
                if len(nodes) == len(instance_ids):
                    return Inventory(record.name, tuple(sorted(nodes.values(), key=lambda node: node.index)))
                awaited = [index for index, instance_id in enumerate(instance_ids) if instance_id not in nodes]
                wait.report(len(nodes), len(instance_ids))
                wait.require_time_left(record.name, instance_ids, awaited)
                self._clock.sleep(delay_s)
                delay_s = min(delay_s * 1.5, _MAX_POLL_S)

    def console(self, region: str, instance_id: str) -> str:
        """Return the last 64 KiB of an instance's console output."""
        return host_keys.read_console(self._session(region), instance_id).text

    def _ready_nodes(
        self, record: ClusterRecord, instance_ids: Sequence[str], awaited: Sequence[str], wait: HostKeyWait
    ) -> list[Node]:
        """Return the nodes among `awaited` that now have an address and a host key."""
        clients = self._session(record.placement.region)
        described = instances.describe(clients, list(awaited))
        for instance in described:
            _require_live(record, instance)
        addresses = (
            session_manager_addresses(described)
            if uses_session_manager(record)
            else self._reach(described, private(record, instance_ids))
        )
        reachable = [instance for instance in described if instance.id in addresses]
        with Workers(_MAX_PARALLEL_CONSOLES) as consoles:
            shown = list(consoles.map(lambda instance: host_keys.read_console(clients, instance.id), reachable))
        keys = [console.fingerprints for console in shown]
        for instance, console in zip(reachable, shown, strict=True):
            wait.saw(instance, console)
        return [
            self._node(record, instance, instance_ids.index(instance.id), addresses[instance.id], key)
            for instance, key in zip(reachable, keys, strict=True)
            if key
        ]

    def _node(
        self, record: ClusterRecord, instance: Instance, index: int, at: tuple[str, int], keys: tuple[str, ...]
    ) -> Node:
        return Node(
            index=index,
            instance_id=instance.id,
            address=at[0],
            port=at[1],
            user=self._settings.ssh_user,
            host_keys=keys,
            private_address=instance.private_address,
            instance_type=instance.type,
            zone=instance.zone,
            gpu=record.placement.gpu,
            gpus=record.placement.gpus_per_node,
            simulated=is_simulated(self.target),
            reach="ssm" if uses_session_manager(record) else "direct",
            bastion=self._settings.bastion,
            jump=HEAD if index != HEAD and public_address_setting(record) == "nat" else None,
            efa=int(record.placement.config.get("efaInterfaces", "0")),
        )

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each instance, `terminated` for instances that AWS no longer lists."""
        states = dict.fromkeys(instance_ids, "terminated")
        if instance_ids:
            described = instances.describe(self._session(region), list(instance_ids))
            states |= {instance.id: instance.state for instance in described}
        return states

    def lifetimes(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Lifetime]:
        """Return start and termination times by instance ID, omitting instances that AWS no longer lists."""
        return billing_times.instance_lifetimes(self._session(region), instance_ids)

    def network_lifetimes(self, region: str, token: str) -> Sequence[Lifetime]:
        """Return the lifetimes of a cluster's NAT gateways and Elastic IPs that AWS still reports."""
        return billing_times.network_resource_lifetimes(self._session(region), token)

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[FoundResource]:
        """Return all resources with the cluster's tag in these regions and IAM; fail if any search fails."""
        return self._regions.search(cluster, (*regions, GLOBAL)).complete()

    def search_each(self, cluster: str, regions: Sequence[str]) -> SearchResult:
        """Search these regions (`global`: IAM) for the cluster's tag. The result lists the errors of failed regions."""
        return self._regions.search(cluster, regions)

    def regions(self) -> Sequence[str]:
        """Return every region that is enabled for the account."""
        return self._regions.names()

    def search_all_clusters(self, region: str) -> SearchResult:
        """Search a region (`global`: IAM) for resources with any cluster's tag."""
        return self._regions.search("", [region])

    def retag(self, found: Sequence[TaggedResource], tags: Mapping[str, str]) -> None:
        """Set the tags on each given instance, volume or interface that lacks a tag or has a different value for it."""
        for region in sorted({resource.region for resource in found} - {GLOBAL}):
            here = [resource for resource in found if resource.region == region]
            add_missing_tags(self._session(region), here, tags)

    def terminate(self, region: str, instance_ids: Sequence[str], on_wait: OnWait = ignore_wait) -> None:
        """Terminate instances by their IDs and wait until AWS confirms their termination."""
        self._regions.terminate(region, instance_ids, on_wait)

    def release(self, found: Sequence[TaggedResource], on_wait: OnWait = ignore_wait) -> None:
        """Delete tagged resources and wait until AWS confirms their deletion.

        Continue with other regions on failure.
        """
        self._regions.release([resource for resource in found if isinstance(resource, FoundResource)], on_wait)

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to an S3 URL, skipping unchanged files, and return the number of bytes sent."""
        return objects.put_files(self._session(self._settings.region), url, source).sent_bytes

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List the objects under an S3 URL, with URLs presigned for the bucket's region."""
        clients = self._session(objects.bucket_region(self._session(self._settings.region), url))
        listed = objects.list_objects(clients, url)
        objects.check_readable(clients, url, listed[0].key)
        urls = objects.presign_urls(clients, url, [item.key for item in listed], expires_s)
        archived = objects.archived_objects(clients.client("s3"), objects.S3Location.parse(url), listed)
        return [
            RemoteFile(urls[item.key], item.relative, item.size, None, item.etag, archived.get(item.key, ""))
            for item in listed
        ]

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, for nodes that access the bucket directly."""
        return S3Service(objects.bucket_region(self._session(self._settings.region), url), self._endpoint.url)

    def storage(self) -> AwsStorage:
        """Return the client for the account's storage."""
        return AwsStorage(self, self._engines, self._clock)

    def catalog(self) -> AwsCatalog:
        """Return the source from which `catalog refresh` reads types, prices, images and quotas."""
        return AwsCatalog(self, self._clock)

    def registry_login(self, region: str) -> RegistryLogin:
        """Return a login for the ECR registries of a region. Logins are cached until shortly before they expire."""
        return self._registry_logins(region)

    def own_images(self) -> AwsImages:
        """Return the store of the account's machine images."""
        return AwsImages(self, self._clock)

    def inspector(self) -> AwsInspector:
        """Return the inspector for resources that a recipe names."""
        return AwsInspector(self._session, self._settings.region)

    def clients(self, region: str) -> Session:
        """Return the API clients for a region."""
        return self._session(region)

    def clients_at(self, zone: str) -> Session:
        """Return the API clients for the region that contains a zone."""
        return self._session(region_of(zone))

    @property
    def session_plugin(self) -> tuple[str, ...]:
        """Command to run instead of AWS's Session Manager plugin; empty for AWS."""
        return (sys.executable, "-I", "-S", str(PLUGIN)) if is_simulated(self.target) else ()


def _require_live(record: ClusterRecord, instance: Instance) -> None:
    if instance.state not in ALIVE_STATES:
        reason = f": {instance.reason_text or instance.reason}" if instance.reason_text or instance.reason else ""
        message = f"instance {instance.id} changed to {instance.state} before it was reachable{reason}"
        delete = f"delete the cluster with `{command('cloudgpu', 'down', record.name)}`"
        raise CloudError(message, hint="; ".join(filter(None, [launch_failure(instance).hint, delete])))


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
