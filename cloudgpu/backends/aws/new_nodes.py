"""Addresses of nodes and of this machine; wait for those of new nodes and their host keys, and write the inventory."""

import http.client
import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from cloudgpu.aws.ec2 import instances, ssh_access
from cloudgpu.aws.ec2.instances import Instance, launch_failure
from cloudgpu.aws.ec2.ssh_access import ConsoleOutput
from cloudgpu.aws.session.session import Session
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, ConnectError, StateError
from cloudgpu.launch.inventory import ALIVE_STATES, Inventory, Node
from cloudgpu.node.agent.fetch.bounded_http import Client
from cloudgpu.run.progress import Activity, Emit, Note
from cloudgpu.settings import Settings
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.text import command, duration_text
from cloudgpu.workers import Workers

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"
_TIMEOUT_S = 10.0
_MOST_BYTES = 64
HEAD = 0
"""Index of the head node. With `publicAddress` set to `nat`, SSH to the other nodes goes through this node."""
_SSH_PORT = 22
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+")
_POLL_S = 0.5
_MAX_POLL_S = 10.0
_MAX_PARALLEL_CONSOLES = 8
_WAITING = "waiting for addresses and host keys"
_DELAYED_FACTOR = 3
"""Factor of the time limit where EC2 posts the console output with a delay.

Without the Nitro System, the output appears minutes after a boot, in cases up to 20 minutes after it (canonical,
pycloudlib, pull request 193). Three times the default of `boot_seconds` is half an hour.
"""
AddressesOf = Callable[[Sequence[Instance], Set[str]], Mapping[str, tuple[str, int]]]
"""Function that returns the SSH address and port by instance ID, omitting instances that have no address yet.

The second argument contains the IDs of the instances that have only a private address.
"""


def own_address() -> str:
    """Return this machine's public address, as seen by AWS, with the suffix `/32`."""
    try:
        answer = Client(_TIMEOUT_S, _MOST_BYTES).send(_ADDRESS_SERVICE, {}, guarded=False)
        # Reject an IPv6 address: with the suffix /32 it would admit an entire provider's network.
        return f"{ipaddress.IPv4Address(answer.body.decode().strip())}/32"
    except (OSError, ValueError, http.client.HTTPException) as err:
        message = f"cannot determine this machine's public address from {_ADDRESS_SERVICE}"
        raise ConnectError(message, hint="specify your address: --ssh-cidr 203.0.113.7/32") from err


def public_address_setting(record: ClusterRecord) -> str:
    """Return the program's `publicAddress` setting, which determines which of the nodes have a public address."""
    return record.placement.config.get("publicAddress") or "auto"


def private(record: ClusterRecord, instance_ids: Sequence[str]) -> Set[str]:
    """Return the IDs of the nodes without a public address: no node, all nodes, or all nodes except the head node."""
    by_exposure = {"private": instance_ids, "nat": instance_ids[HEAD + 1 :]}
    return frozenset(by_exposure.get(public_address_setting(record), ()))


def uses_session_manager(record: ClusterRecord) -> bool:
    """Return True if SSH to the nodes goes through Session Manager."""
    return record.placement.config.get("reach") == "ssm"


def session_manager_addresses(instances: Sequence[Instance]) -> dict[str, tuple[str, int]]:
    """Return an address (the instance ID) and the SSH port for every instance that has a private address."""
    return {instance.id: (instance.id, _SSH_PORT) for instance in instances if instance.private_address}


def region_of(zone: str) -> str:
    """Return the region of a zone, including local zones such as `us-west-2-lax-1a`."""
    match = _REGION.match(zone)
    if match is None:
        message = f"{zone!r} is not a zone name"
        raise StateError(message, hint="run `cloudgpu status --refresh` to update the recorded nodes")
    return match[0]


@dataclass(frozen=True)
class NewNodes:
    """Reads the addresses and host keys of a cluster's launched instances.

    Attributes:
        session: Function that returns the session of a region.
        simulated: Whether the nodes belong to the rehearsal cloud.
    """

    session: Callable[[str], Session]
    addresses_of: AddressesOf
    settings: Settings
    clock: Clock
    simulated: bool

    def inventory(self, record: ClusterRecord, instance_ids: Sequence[str], emit: Emit) -> Inventory:
        """Wait until every instance has an address and has printed its host keys on its console; return the inventory.

        The limit is `boot_seconds`, or three times as long if EC2 posts the console output with a delay.
        """
        nodes: dict[str, Node] = {}
        delay_s = _POLL_S
        with _HostKeyWait(self.settings.boot_seconds, self.clock, emit) as wait:
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
                self.clock.sleep(delay_s)
                delay_s = min(delay_s * 1.5, _MAX_POLL_S)

    def _ready_nodes(
        self, record: ClusterRecord, instance_ids: Sequence[str], awaited: Sequence[str], wait: "_HostKeyWait"
    ) -> list[Node]:
        """Return the nodes among `awaited` that now have an address and a host key."""
        session = self.session(record.placement.region)
        described = instances.describe(session, list(awaited))
        for instance in described:
            _require_live(record, instance)
        addresses = (
            session_manager_addresses(described)
            if uses_session_manager(record)
            else self.addresses_of(described, private(record, instance_ids))
        )
        reachable = [instance for instance in described if instance.id in addresses]
        with Workers(_MAX_PARALLEL_CONSOLES) as consoles:
            shown = list(consoles.map(lambda instance: ssh_access.read_console(session, instance.id), reachable))
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
            user=self.settings.ssh_user,
            host_keys=keys,
            private_address=instance.private_address,
            instance_type=instance.type,
            zone=instance.zone,
            gpu=record.placement.gpu,
            gpus=record.placement.gpus_per_node,
            simulated=self.simulated,
            reach="ssm" if uses_session_manager(record) else "direct",
            bastion=self.settings.bastion,
            jump=HEAD if index != HEAD and public_address_setting(record) == "nat" else None,
            efa=int(record.placement.config.get("efaInterfaces", "0")),
        )


def _require_live(record: ClusterRecord, instance: Instance) -> None:
    if instance.state not in ALIVE_STATES:
        reason = f": {instance.reason_text or instance.reason}" if instance.reason_text or instance.reason else ""
        message = f"instance {instance.id} changed to {instance.state} before it was reachable{reason}"
        delete = f"delete the cluster with `{command('cloudgpu', 'down', record.name)}`"
        raise CloudError(message, hint="; ".join(filter(None, [launch_failure(instance).hint, delete])))


class _HostKeyWait:
    """The wait for the addresses and host keys of one cluster's nodes."""

    def __init__(self, boot_s: int, clock: Clock, emit: Emit) -> None:
        """Begin the wait. `boot_s` is the time limit in seconds for consoles that are live."""
        self._boot_s, self._clock, self._emit = boot_s, clock, emit
        self._began_s = clock.monotonic()
        self._addressed: set[str] = set()
        self._delayed: dict[str, str] = {}

    def __enter__(self) -> "_HostKeyWait":
        return self

    def __exit__(self, *_: object) -> None:
        """Report that the wait is over."""
        self._emit(Activity(_WAITING, finished=True))

    @property
    def limit_s(self) -> int:
        """Time limit in seconds for all nodes together."""
        return self._boot_s * (_DELAYED_FACTOR if self._delayed else 1)

    def saw(self, instance: Instance, console: ConsoleOutput) -> None:
        """Note that an instance has an address, and whether its console is live. Report the first one that is not."""
        self._addressed.add(instance.id)
        if console.live:
            return
        if not self._delayed:
            why = f"EC2 shows the console of {instance.type} only minutes after the boot, because it is no Nitro type"
            self._emit(Note(f"waiting up to {duration_text(self._boot_s * _DELAYED_FACTOR)} for the host keys: {why}"))
        self._delayed[instance.id] = instance.type

    def report(self, done: int, total: int) -> None:
        """Report how many nodes have an address and a host key."""
        self._emit(Activity(_WAITING, done=done, total=total, unit="nodes", limit_s=self.limit_s))

    def require_time_left(self, cluster: str, instance_ids: Sequence[str], awaited: Sequence[int]) -> None:
        """Check that the time limit has not passed.

        Args:
            cluster: Name of the cluster, for the hint.
            instance_ids: The instances of the cluster in node order.
            awaited: Indices of the nodes without an address or a host key.
        """
        if self._clock.monotonic() - self._began_s <= self.limit_s:
            return
        ids = [instance_ids[index] for index in awaited]
        keyless = [instance_id for instance_id in ids if instance_id in self._addressed]
        lacks = {
            "no address": [instance_id for instance_id in ids if instance_id not in self._addressed],
            "no host key on the console": keyless,
        }
        parts = [f"{what}: {', '.join(found)}" for what, found in lacks.items() if found]
        late = sorted({self._delayed[instance_id] for instance_id in keyless if instance_id in self._delayed})
        why = f" (EC2 shows the console of {', '.join(late)} with a delay: raise boot_seconds)" if late else ""
        err = CloudError(
            f"after {duration_text(self.limit_s)}, {'; '.join(parts)}{why}", hint=command("cloudgpu", "down", cluster)
        )
        err.nodes = tuple(awaited)
        raise err
