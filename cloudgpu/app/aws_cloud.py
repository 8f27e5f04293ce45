"""The `Cloud` of the use cases over the AWS room: one code path for the real AWS and for the rehearsal cloud."""

import ipaddress
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock

from cloudgpu.app.calls import CallLog
from cloudgpu.app.happenings import Say
from cloudgpu.app.ports import Leftover
from cloudgpu.app.records import ClusterRecord
from cloudgpu.aws import host_keys, instances, objects, offers
from cloudgpu.aws import search as tag_search
from cloudgpu.aws.found import Found
from cloudgpu.aws.instances import Instance
from cloudgpu.aws.resources import registry
from cloudgpu.aws.session import Endpoint, Session, connect
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, ConnectError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Quotes, Target
from cloudgpu.provision.direct import DirectEngine
from cloudgpu.provision.engine import Engine
from cloudgpu.provision.journal import Identity
from cloudgpu.rehearsal import client as rehearsal
from cloudgpu.run.files import RemoteFile
from cloudgpu.run.progress import Note
from cloudgpu.settings import Settings

_BOOT_LIMIT_S = 600
_POLL_S = 0.5
_POLL_SLOWEST_S = 10.0
_ADDRESS_SERVICE = "https://checkip.amazonaws.com"

Reach = Callable[[Instance], tuple[str, int] | None]
"""Address and port of an instance's SSH server, None while it has none."""


class AwsCloud:
    """AWS, or what stands in for it, in every region that is asked for."""

    def __init__(  # noqa: PLR0917
        self,
        target: Target,
        endpoint: Endpoint,
        identity: str,
        settings: Settings,
        clock: Clock,
        calls: CallLog,
        reach: Reach,
    ) -> None:
        self.target: Target = target
        self.endpoint = identity
        self._endpoint = endpoint
        self._settings = settings
        self._clock = clock
        self._calls = calls
        self._reach = reach
        self._sessions: dict[str, Session] = {}
        self._lock = Lock()
        self._account = ""

    def account(self) -> str:
        """Account id of the credentials in use."""
        if not self._account:
            self._account = self._session(self._settings.region).account()
        return self._account

    def quotes(self, wanted: Sequence[tuple[str, str]]) -> Quotes:
        """Which zones offer each (instance type, region) now."""
        return offers.quotes(self._session, wanted)

    def engine(self, record: ClusterRecord) -> Engine:
        """The direct engine with this cluster's tags and identity."""
        return DirectEngine(
            clients_for=self._session,
            handlers=registry,
            tags=cluster_tags(record),
            identity=Identity(account=record.account, endpoint=record.endpoint),
            clock=self._clock,
        )

    def caller_cidr(self) -> str:
        """The address that may reach port 22: as set, else this machine's own as the internet sees it.

        Raises:
            ConnectError: It could not be found out.
        """
        if self._settings.ssh_cidr:
            return self._settings.ssh_cidr
        return "127.0.0.1/32" if self.target == "rehearsal" else own_address()

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], say: Say) -> Inventory:
        """Wait until every instance has an address and has printed its host keys on its console.

        Raises:
            CloudError: An instance ended meanwhile, or ten minutes passed.
        """
        clients = self._session(record.region)
        deadline = self._clock.monotonic() + _BOOT_LIMIT_S
        nodes: dict[str, Node] = {}
        pause = _POLL_S
        while True:
            for instance in instances.describe(clients, [one for one in instance_ids if one not in nodes]):
                node = self._node(record, instance, list(instance_ids).index(instance.id))
                if node is not None:
                    nodes[instance.id] = node
                    say(Note(f"{instance.id} is up at {node.address}, host key {node.host_keys[0]}", node.index))
            if len(nodes) == len(instance_ids):
                ordered = sorted(nodes.values(), key=lambda node: node.index)
                return Inventory(record.name, tuple(ordered))
            if self._clock.monotonic() > deadline:
                silent = [one for one in instance_ids if one not in nodes]
                message = f"after {_BOOT_LIMIT_S // 60} minutes {', '.join(silent)} printed no host key on the console"
                raise CloudError(message, hint=f"cloudgpu down {record.name}")
            self._clock.sleep(pause)
            pause = min(pause * 1.5, _POLL_SLOWEST_S)

    def _node(self, record: ClusterRecord, instance: Instance, index: int) -> Node | None:
        if instance.state not in ("pending", "running"):
            message = f"instance {instance.id} is {instance.state} before it was reached"
            raise CloudError(message, hint=f"cloudgpu down {record.name}")
        reached = self._reach(instance)
        keys = host_keys.fingerprints(self._session(record.region), instance.id) if reached else ()
        if reached is None or not keys:
            return None
        return Node(
            index=index,
            instance_id=instance.id,
            address=reached[0],
            port=reached[1],
            user=self._settings.ssh_user,
            host_keys=keys,
            private_address=instance.private_address,
            instance_type=instance.type,
            zone=instance.zone,
            gpu=record.gpu,
            gpus=record.gpus_per_node,
            simulated=self.target == "rehearsal",
        )

    def nodes_alive(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Instance id -> state; `terminated` for one that AWS no longer describes."""
        states = dict.fromkeys(instance_ids, "terminated")
        if instance_ids:
            states |= {one.id: one.state for one in instances.describe(self._session(region), list(instance_ids))}
        return states

    def search(self, cluster: str, regions: Sequence[str]) -> Sequence[Found]:
        """Everything that carries the cluster's tag in these regions."""
        found = {}
        for region in regions:
            for one in tag_search.everything(self._session(region), cluster, None):
                found[one.kind, one.id] = one
        return list(found.values())

    def release(self, found: Sequence[Leftover]) -> None:
        """End what a search found, and wait until it is confirmed."""
        own = [one for one in found if isinstance(one, Found)]
        regions = {one.region for one in own} - {"global"} or {self._settings.region}
        for region in sorted(regions):
            here = [one for one in own if one.region in (region, "global")]
            tag_search.release(self._session(region), here, self._clock)

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a file or directory to an S3 URL unless it is there already; returns bytes sent."""
        return objects.put_files(self._session(self._settings.region), url, source).sent_bytes

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List an S3 URL with presigned addresses."""
        clients = self._session(self._settings.region)
        listed = objects.listing(clients, url)
        urls = objects.presigned(clients, url, [one.key for one in listed], expires_s)
        return [RemoteFile(urls[one.key], one.relative, one.size, None) for one in listed]

    def _session(self, region: str) -> Session:
        with self._lock:
            if region not in self._sessions:
                profile = self._settings.aws_profile or None
                self._sessions[region] = connect(self._endpoint, region, profile, on_call=self._calls)
            return self._sessions[region]


def cluster_tags(record: ClusterRecord) -> dict[str, str]:
    """The tags on everything that costs money."""
    return {
        "cloudgpu:cluster": record.name,
        "cloudgpu:owner": record.owner,
        "cloudgpu:team": record.team,
        "cloudgpu:run": record.run_id,
        "cloudgpu:expires-at": record.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cloudgpu:token": record.token,
    }


def connect_aws(settings: Settings, clock: Clock, calls: CallLog) -> AwsCloud:
    """The real AWS with the user's own credentials; `AWS_ENDPOINT_URL` is ignored."""

    def reach(instance: Instance) -> tuple[str, int] | None:
        return (instance.public_address, 22) if instance.public_address else None

    return AwsCloud("aws", Endpoint(), "", settings, clock, calls, reach)


def connect_rehearsal(settings: Settings, home: Home, clock: Clock, calls: CallLog) -> AwsCloud:
    """This home's rehearsal cloud, started when it does not run.

    Raises:
        RehearsalError: It does not start.
    """
    cloud = start_rehearsal(settings, home, clock)
    endpoint = Endpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key)

    def reach(instance: Instance) -> tuple[str, int] | None:
        for node in rehearsal.nodes(cloud):
            if node.instance_id == instance.id and node.address and node.port:
                return node.address, node.port
        return None

    # The port changes from one start to the next; the key does not, and no other home has it.
    return AwsCloud("rehearsal", endpoint, f"rehearsal:{cloud.access_key_id}", settings, clock, calls, reach)


def start_rehearsal(settings: Settings, home: Home, clock: Clock) -> rehearsal.Cloud:
    """This home's rehearsal cloud, started as the settings say when it does not run.

    Raises:
        RehearsalError: It does not start.
    """
    return rehearsal.ensure(home, clock, envs=settings.env_cache, idle_minutes=float(settings.rehearsal_idle_minutes))


def own_address() -> str:
    """This machine's address as AWS sees it, as `a.b.c.d/32`.

    Raises:
        ConnectError: The service did not answer with an address.
    """
    try:
        with urllib.request.urlopen(_ADDRESS_SERVICE, timeout=10) as answer:
            return f"{ipaddress.ip_address(answer.read(64).decode().strip())}/32"
    except (OSError, ValueError) as err:
        message = f"could not find out this machine's public address from {_ADDRESS_SERVICE}"
        raise ConnectError(message, hint="say it: --ssh-cidr 203.0.113.7/32") from err
