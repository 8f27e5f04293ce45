"""The backend for self-managed hosts, which are leased instead of being launched, and its offers for the planner."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from cloudgpu.backends.base import Backend, ClusterOperations, Context, Offers
from cloudgpu.backends.environment import BackendEnvironment
from cloudgpu.backends.hosts.nodes import LeasesResponse, host_of, node_of
from cloudgpu.backends.node_connections import NodeCarriers, NodeConnections
from cloudgpu.catalog import load as load_catalog
from cloudgpu.catalog.gpu_spec import parse_gpu_spec
from cloudgpu.decoding import decode_as, describe_error
from cloudgpu.errors import CloudGpuError, ConnectError, HostKeyError
from cloudgpu.hosts import loading
from cloudgpu.hosts.host import HostSeen, HostsFile, HostsView, OwnHost
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.plan.host_sets import matching_hosts
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.run.agent import ask_once
from cloudgpu.run.dataset_copies import RemoteFile, S3Service
from cloudgpu.run.progress import Emit
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.connection import ShownKey, shown_key
from cloudgpu.ssh.fanout import all_or_raise, connect_all, run_on_all
from cloudgpu.ssh.known_hosts import authority_note
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.targets import Target
from cloudgpu.text import command, printable

RunningClusters = tuple[tuple[tuple[str, ...], int], ...]
"""For each running cluster: its hosts, and the number of GPUs that the cluster leases on each host."""
_NO_REGION = "us-east-1"
"""Placeholder that is never queried: `PlannerInput` requires a region, but self-managed hosts do not have one."""
_OPERATIONS = "cloudgpu.backends.hosts.operations"
_ANSWER_S = 10.0
"""Connection timeout in seconds. It is short because, unlike a new instance, a self-managed host is already booted."""
ACCOUNT = "own hosts"
"""Text in records and the ledger in place of an account ID."""
_T = TypeVar("_T")
ConnectAll = Callable[[Sequence[Node]], "Mapping[int, Host | CloudGpuError]"]
"""Function that connects to hosts independently and returns a connection or an error by node index."""


@dataclass(frozen=True)
class HostOffers(Offers):
    """The hosts of one inventory. They have no regions.

    Attributes:
        file: Function that reads the inventory.
        look: Function that queries the GPU usage of hosts. Not called when planning offline.
        running: Function that returns, for each running cluster, its hosts and the number of GPUs leased on each host.
    """

    file: Callable[[], HostsFile]
    look: Callable[[Sequence[OwnHost]], Mapping[str, HostSeen]]
    running: Callable[[], RunningClusters]
    offline: bool

    def quote(self, inputs: PlannerInput) -> PlannerInput:
        """Add the inventory and, unless offline, the GPU usage of the matching hosts to the planner's input."""
        view = HostsView(self.file(), running=self.running())
        inputs = replace(inputs, default_region=_NO_REGION, hosts=view)
        if self.offline:
            return inputs
        hosts = dict.fromkeys(host for spec in inputs.specs for host in matching_hosts(inputs, parse_gpu_spec(spec)))
        # If no host matches, a finding of the plan explains why.
        seen = self.look(list(hosts)) if hosts else {}
        if inputs.recipe.environment.container is not None:
            seen = {name: _for_containers(state) for name, state in seen.items()}
        return replace(inputs, hosts=replace(view, seen=seen))


def _for_containers(state: HostSeen) -> HostSeen:
    """Return the state of a host that must run a container, and so needs a working Docker engine."""
    return replace(state, problem=state.problem or state.engine_problem)


@dataclass(frozen=True)
class HostsBackend(Backend):
    """The backend for the hosts of one inventory, with the records of one state home.

    Attributes:
        file: Function that reads the inventory. Called only when needed, because commands on existing clusters do not
            need the inventory.
        connections: SSH connections to the nodes of clusters.
        known_hosts: The caller's OpenSSH known_hosts files.
        shown_key: Function that reads the host key that an unknown host presents.
        objects_of: Function that returns the backend for access to S3 and to ECR registries.
    """

    home: Home
    records: RecordStore
    file: Callable[[], HostsFile]
    connect_all: ConnectAll
    connections: NodeConnections
    known_hosts: tuple[Path, ...]
    shown_key: Callable[[Node], ShownKey]
    objects_of: Callable[[], Backend]

    @property
    def target(self) -> Target:
        """Target of the backend, `ssh`."""
        return "ssh"

    @property
    def description(self) -> str:
        """Name of the backend in messages."""
        return "self-managed hosts"

    @property
    def endpoint(self) -> str:
        """Empty string. Moving or renaming the inventory file must not affect existing clusters."""
        return ""

    def account(self) -> str:
        """Return the text that takes the place of an account ID."""
        return ACCOUNT

    def clusters(self, context: Context) -> ClusterOperations:
        """Return the operations on clusters, which use the records and the ledger of `context`."""
        operations: ClusterOperations = import_module(_OPERATIONS).host_clusters(context, self)
        return operations

    def offers(self, *, offline: bool) -> HostOffers:
        """Return the source of the inventory's hosts and, unless offline, of the current use of their GPUs."""
        return HostOffers(self.file, self.look, self._running_clusters, offline)

    def _running_clusters(self) -> RunningClusters:
        running = (self.target, "up")
        clusters = [record for record in self.records.clusters() if (record.identity.target, record.state) == running]
        return tuple(
            (tuple(host_of(name) for name in record.placement.instance_ids), record.placement.gpus_per_node)
            for record in clusters
        )

    def carriers(self) -> NodeCarriers:
        """Return the connectors for hosts behind a jump host."""
        return self.connections.carriers

    def connect(self, nodes: Sequence[Node], emit: Emit) -> list[Host]:
        """Connect to all nodes of a cluster."""
        return self.connections.connect(nodes, emit)

    def instance_states(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, str]:
        """Return the state of each node: `running` if the cluster has a lease on the host, else `terminated`.

        Nodes of a cluster without a record are `terminated`, because a record is removed only after every host has
        confirmed the release of its lease.
        """
        del region
        states = dict.fromkeys(instance_ids, "terminated")
        for cluster in dict.fromkeys(instance_id.rpartition("@")[2] for instance_id in instance_ids):
            record = self.records.cluster(cluster)
            if record is None:
                continue
            ids_of_cluster = {instance_id for instance_id in instance_ids if instance_id.endswith(f"@{cluster}")}
            nodes = [node for node in stored_inventory(self.home, record).nodes if node.instance_id in ids_of_cluster]
            for node, leases in self.asked(nodes, {"action": "show", "token": record.identity.token}):
                has_lease = any(lease["mine"] for lease in leases["leases"])
                states[node.instance_id] = "running" if has_lease else "terminated"
        return states

    def put_objects(self, url: str, source: Path) -> int:
        """Upload a directory to S3 with the caller's AWS credentials, and return the number of bytes sent."""
        return self.objects_of().put_objects(url, source)

    def objects(self, url: str, *, expires_s: int) -> Sequence[RemoteFile]:
        """List an S3 URL with the caller's AWS credentials. The hosts themselves only receive presigned URLs."""
        return self.objects_of().objects(url, expires_s=expires_s)

    def bucket_service(self, url: str) -> S3Service:
        """Return the region and endpoint of a bucket, from the caller's AWS settings."""
        return self.objects_of().bucket_service(url)

    def registry_login(self, region: str) -> RegistryLogin:
        """Return a login for the ECR registries of a region, fetched with the caller's AWS credentials."""
        return self.objects_of().registry_login(region)

    def nodes(self, hosts: Sequence[OwnHost]) -> tuple[Node, ...]:
        """Return the nodes to connect to, in the order of the hosts."""
        return tuple(node_of(host, self.known_hosts, index=index) for index, host in enumerate(hosts))

    def asked(self, nodes: Sequence[Node], request: Mapping[str, Any]) -> list[tuple[Node, dict[str, Any]]]:
        """Send a `lease` request to the agents and return their responses, without leaving files on the hosts."""
        with self.connected(nodes) as outcomes:
            hosts = all_or_raise(outcomes)
            responses = all_or_raise(
                run_on_all(hosts.values(), lambda host: ask_once(host, "lease", request, LeasesResponse))
            )
            return [(hosts[index].node, response) for index, response in responses.items()]

    @contextmanager
    def connected(self, nodes: Sequence[Node]) -> Iterator[dict[int, Host | CloudGpuError]]:
        """Connect to nodes, and yield a connection or an error for each node index. Unknown host keys are errors."""
        with ExitStack() as opened:
            outcomes = dict(self.connect_all([node for node in nodes if node.host_keys]))
            for outcome in outcomes.values():
                if not isinstance(outcome, CloudGpuError):
                    opened.callback(outcome.close)
            unconfirmed = {node.index: self._unconfirmed(node) for node in nodes if not node.host_keys}
            yield {node.index: (outcomes | unconfirmed)[node.index] for node in nodes}

    def _unconfirmed(self, node: Node) -> HostKeyError:
        return unconfirmed_key_error(node, authority_note(node.address, node.port, self.known_hosts))

    def query_nodes(self, nodes: Sequence[Node], ask: Callable[[Host], _T]) -> dict[int, _T | CloudGpuError]:
        """Query all nodes in parallel and return a response or an error for each node index."""
        with self.connected(nodes) as outcomes:
            unreached = {index: outcome for index, outcome in outcomes.items() if isinstance(outcome, CloudGpuError)}
            reached = [outcome for outcome in outcomes.values() if not isinstance(outcome, CloudGpuError)]
            return {**unreached, **run_on_all(reached, ask)}

    def look(self, hosts: Sequence[OwnHost]) -> dict[str, HostSeen]:
        """Return the GPU usage of each host, or the reason why it is unknown."""
        nodes = self.nodes(hosts)
        request = {"action": "show", "engine": True}
        responses = self.query_nodes(nodes, lambda host: ask_once(host, "lease", request, LeasesResponse))
        same = duplicate_machines({node.zone: responses[node.index] for node in nodes})
        return {node.zone: _seen(responses[node.index], same.get(node.zone, "")) for node in nodes}


def unconfirmed_key_error(node: Node, note: str = "") -> HostKeyError:
    """Return the error for a host whose key has not been confirmed. `note` is added to the message."""
    host = f"{node.zone} ({node.user}@{node.address}:{node.port})"
    message = f"the host key of {host} is neither in the inventory nor in your known_hosts{note}"
    scan = command("cloudgpu", "hosts", "scan", node.zone)
    return HostKeyError(message, hint=f"run `{scan}` to check and confirm its fingerprint")


def duplicate_machines(responses: Mapping[str, object]) -> dict[str, str]:
    """Return the hosts that are the same machine as an earlier host, with the earlier host's name.

    `responses` contains each host's response to a `lease` request, or an error.
    """
    first: dict[str, str] = {}
    duplicates = {}
    for name, response in responses.items():
        system = response.get("system") if isinstance(response, Mapping) else None
        if system and first.setdefault(str(system), name) != name:
            duplicates[name] = first[str(system)]
    return duplicates


def _seen(response: object, same_as: str = "") -> HostSeen:
    if isinstance(response, CloudGpuError):
        return HostSeen(problem=response.message)
    if not isinstance(response, dict):
        return HostSeen(problem="its agent sent no response")
    try:
        state = decode_as(LeasesResponse, response)
    except ValueError as err:
        return HostSeen(problem=f"its agent sent a malformed response: {describe_error(err)}")
    leased = {gpu for lease in state.leases for gpu in lease.gpus}
    foreign = [process for process in state.processes if process.gpu not in leased]
    return HostSeen(
        problem=state.problem or (f"it is the same machine as {same_as}" if same_as else ""),
        gpus=len(state.gpus),
        taken=(
            *(f"leased: {lease.told}" for lease in state.leases),
            *(f"in use: {process.told}" for process in foreign),
        ),
        busy=frozenset(leased | {process.gpu for process in foreign}),
        engine_problem=printable(state.engine.problem),
    )


def open_backend(environment: BackendEnvironment) -> HostsBackend:
    """Return the backend of the configured inventory, which is read when it is first needed."""
    settings, clock = environment.settings, environment.clock

    def no_session(node: Node) -> NoReturn:
        message = f"{node.zone} is a self-managed host, which Session Manager cannot reach"
        raise ConnectError(message, hint="remove `reach: ssm` from the inventory")

    carriers = NodeCarriers(settings.ssh_key, clock, environment.known_hosts, no_session)

    def connect_hosts(nodes: Sequence[Node]) -> Mapping[int, Host | CloudGpuError]:
        return connect_all(nodes, settings.ssh_key, clock=clock, timeout_s=_ANSWER_S, carrier=carriers.carrier)

    @cache
    def inventory() -> HostsFile:
        return loading.load(settings.hosts, user=getpass.getuser(), catalog=load_catalog())

    return HostsBackend(
        environment.home,
        environment.records,
        inventory,
        connect_hosts,
        NodeConnections(settings.ssh_key, clock, float(settings.boot_seconds), carriers),
        environment.known_hosts,
        lambda node: shown_key(node, carriers.carrier(node), timeout_s=_ANSWER_S),
        environment.buckets,
    )


@dataclass(frozen=True)
class HostsContext(Context):
    """A context whose nodes are self-managed hosts.

    Attributes:
        hosts: The backend, which connects to the hosts of the inventory.
    """

    hosts: HostsBackend
