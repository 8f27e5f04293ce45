"""`ssh` and `ssh-config`: connect to the nodes of a running cluster, with OpenSSH or in this process."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.backends.node_connections import NodeCarriers
from cloudgpu.clock import Clock
from cloudgpu.errors import BusyError, CloudGpuError, ConnectError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.fanout import all_or_raise, connect_all
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.ssh.openssh import HostEntry, JumpNode, render_config, ssh_argv, write_known_hosts
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.user_ssh_config import SshFolder, record_folder
from cloudgpu.text import command, index_range_text

ConnectionsByNode = Mapping[int, SshHost | CloudGpuError]
"""Node index -> connection to the node, or the error that prevented the connection."""


@dataclass(frozen=True)
class NodeLogin:
    """Dependencies for logging in to a node.

    Attributes:
        proxy_command: Function that returns the proxy command for a node behind Session Manager, given the
            cluster's name and the node's index.
        authorize_caller: Function that authorizes SSH from the caller's current address. Called only if a node does
            not respond, because it sends requests to the cloud.
    """

    key: Path
    clock: Clock
    ways: NodeCarriers
    proxy_command: Callable[[str, int], Sequence[str]]
    authorize_caller: Callable[[ClusterRecord], object]


def build_login_command(
    records: RecordStore, home: Home, means: NodeLogin, *, cluster: str, index: int, command: Sequence[str] = ()
) -> list[str]:
    """Connect to a node to pin its host key in a known_hosts file, and return the argument vector for `ssh`.

    Raises:
        UsageError: The cluster or node does not exist.
        StateError: The list of the cluster's nodes does not exist yet, or cannot be read.
        ConnectError: The node is unreachable, rejects the key, or has an unexpected host key.
    """
    record = find_cluster_record(records, cluster)
    nodes = stored_inventory(home, record).nodes
    node = node_by_index(nodes, record, index)

    def argv() -> list[str]:
        return _argv(nodes, node, home.cluster(record.name).root, means, command)

    try:
        return argv()
    except ConnectError as err:
        if isinstance(err, AuthRefusedError) or not err.retryable:
            raise
        means.authorize_caller(record)
        return argv()


def parse_node_and_command(
    option: int | None, words: Sequence[str], behind: Sequence[str]
) -> tuple[int, tuple[str, ...]]:
    """Parse the node index and the command. `NODE` may follow the cluster name; `--` before the command is optional.

    Raises:
        UsageError: Two different nodes are specified.
    """
    positional = int(words[0]) if words and re.fullmatch("[0-9]{1,3}", words[0]) else None
    if positional is None:
        return option or 0, (*words, *behind)
    if option not in (None, positional):
        raise UsageError(f"node {positional} and --node {option} conflict", hint="use only one of them")
    return positional, (*words[1:], *behind)


def find_cluster_record(records: RecordStore, cluster: str) -> ClusterRecord:
    """Return a cluster, given its name or the ID of one of its runs.

    Raises:
        UsageError: The cluster does not exist.
    """
    record = records.cluster(cluster) if cluster else None
    if record is None and cluster:
        run = records.run(cluster)
        record = records.cluster(run.cluster) if run is not None else None
    if record is None:
        message = f"cluster {cluster} does not exist" if cluster else "no cluster is recorded on this machine"
        raise UsageError(message, hint="run `cloudgpu status` to list the clusters")
    return record


def node_by_index(nodes: Sequence[Node], record: ClusterRecord, index: int) -> Node:
    """Return a node by its index.

    Raises:
        UsageError: The cluster has no such node.
    """
    if not 0 <= index < len(nodes):
        message = f"cluster {record.name} has no node {index}; {index_range_text(len(nodes))}"
        raise UsageError(message)
    return nodes[index]


def _argv(nodes: Sequence[Node], node: Node, root: Path, means: NodeLogin, command: Sequence[str]) -> list[str]:
    def pinned(host: SshHost, name: str) -> Path:
        return write_known_hosts(root / f"known_hosts.{name}", host.node, host.server_key())

    with ExitStack() as opened:
        gate, via = None, means.ways.carrier(node)
        if node.jump is not None:
            first = opened.enter_context(connect(nodes[node.jump], means.key, clock=means.clock))
            gate, via = JumpNode(first.node, pinned(first, str(node.jump))), first
        host = opened.enter_context(connect(node, means.key, clock=means.clock, via=via))
        if node.bastion:
            jump = opened.enter_context(means.ways.gate(node))
            gate = JumpNode(jump.node, pinned(jump, "bastion"))
        known_hosts = pinned(host, str(node.index))
    proxy = means.proxy_command(root.name, node.index) if node.reach == "ssm" else ()
    return ssh_argv(node, key=means.key, known_hosts=known_hosts, command=command, gate=gate, proxy=proxy)


@dataclass(frozen=True)
class ClusterNodes:
    """A cluster and all of its nodes, in index order."""

    record: ClusterRecord
    nodes: tuple[Node, ...]

    def node(self, index: int) -> Node:
        """Return a node by its index.

        Raises:
            UsageError: The cluster has no such node.
        """
        return node_by_index(self.nodes, self.record, index)


def find_cluster_nodes(records: RecordStore, home: Home, means: NodeLogin, name: str) -> ClusterNodes:
    """Return the nodes of a cluster, given the cluster's name or the ID of one of its runs.

    Raises:
        UsageError: The cluster does not exist or has expired.
        BusyError: The cluster is being deleted.
        StateError: The list of the cluster's nodes does not exist yet, or cannot be read.
    """
    record = find_cluster_record(records, name)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being deleted", hint=command("cloudgpu", "down", record.name))
    expiry = record.lifecycle.expires_at
    if expiry <= means.clock.now():
        message = f"cluster {record.name} expired at {expiry:%Y-%m-%d %H:%M} UTC and no longer has any nodes"
        raise UsageError(message, hint=command("cloudgpu", "down", record.name))
    return ClusterNodes(record, stored_inventory(home, record).nodes)


@contextmanager
def connect_to_nodes(means: NodeLogin, cluster: ClusterNodes, indices: Collection[int]) -> Iterator[ConnectionsByNode]:
    """Connect to these nodes concurrently and yield a connection or an error for each of them.

    If a node does not respond, authorize SSH from the caller's current address, which may have changed, and retry.
    """
    requested = [node for node in cluster.nodes if node.index in indices]
    outcomes = dict(_connected(means, cluster.nodes, requested))
    unreachable = [node for node in requested if _may_need_authorization(outcomes[node.index])]
    if unreachable:
        means.authorize_caller(cluster.record)
        outcomes |= _connected(means, cluster.nodes, unreachable)
    try:
        yield {node.index: outcomes[node.index] for node in requested}
    finally:
        for outcome in outcomes.values():
            if isinstance(outcome, SshHost):
                outcome.close()


def _connected(means: NodeLogin, nodes: Sequence[Node], requested: Sequence[Node]) -> ConnectionsByNode:
    """Connect to the requested nodes and their jump nodes."""
    jump_indices = {node.jump for node in requested if node.jump is not None}
    with_jumps = [node for node in nodes if node in requested or node.index in jump_indices]
    return connect_all(with_jumps, means.key, clock=means.clock, carrier=means.ways.carrier)


def _may_need_authorization(outcome: SshHost | CloudGpuError) -> bool:
    return isinstance(outcome, ConnectError) and outcome.retryable and not isinstance(outcome, AuthRefusedError)


@dataclass(frozen=True)
class ClusterEntries:
    """OpenSSH configuration entries for a cluster.

    Attributes:
        names: Aliases under which `ssh` finds the nodes.
        text: Content of the cluster's configuration file.
    """

    names: tuple[str, ...]
    text: str


def build_entries(home: Home, means: NodeLogin, cluster: ClusterNodes, reached: ConnectionsByNode) -> ClusterEntries:
    """Pin the nodes' host keys in the cluster's known_hosts files, and return the entries for all nodes.

    Raises:
        ConnectError: A node is unreachable, so its host key cannot be read.
        StateError: The files cannot be written.
    """
    hosts, name = all_or_raise(reached), cluster.record.name
    root = home.cluster(name).root
    pinned = {index: write_known_hosts(root / f"known_hosts.{index}", host.node, host.server_key())
              for index, host in hosts.items()}  # fmt: skip
    host_entries = [_entry(name, node, cluster.nodes, pinned, means, root) for node in cluster.nodes]
    heading = (
        f"cluster {name} of {home.root}",
        f"created by `{command('cloudgpu', 'ssh-config', name)}`; `{command('cloudgpu', 'down', name)}` removes it",
    )
    return ClusterEntries(
        tuple(name for entry in host_entries for name in entry.names), render_config(host_entries, means.key, heading)
    )


def write_entries(home: Home, cluster: str, entries: ClusterEntries, folder: SshFolder) -> bool:
    """Write the cluster's configuration file. Return True if an `Include` line was added to the user's configuration.

    Raises:
        StateError: A file cannot be written, or another state home has entries for a cluster with this name.
    """
    folder.require_usable(cluster, home.root)
    record_folder(home, cluster, folder)  # first, so that `down` finds the file even if this process is killed
    return folder.write(cluster, entries.text)


def _entry(
    name: str, node: Node, nodes: Sequence[Node], pinned: dict[int, Path], means: NodeLogin, root: Path
) -> HostEntry:
    names = (f"{name}-{node.index}", *((name,) if node.index == 0 else ()))
    gate = None
    if node.jump is not None:
        gate = JumpNode(nodes[node.jump], pinned[node.jump])
    elif node.bastion:
        jump = means.ways.gate(node)
        gate = JumpNode(
            jump.node, write_known_hosts(root / f"known_hosts.gate-{node.index}", jump.node, jump.server_key())
        )
    proxy = tuple(means.proxy_command(name, node.index)) if node.reach == "ssm" else ()
    return HostEntry(names, node, pinned[node.index], gate, proxy)
