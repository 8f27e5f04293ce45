"""`ssh`: build the OpenSSH command line for a node."""

import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.backends.node_connections import NodeCarriers
from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.ssh.openssh import JumpNode, ssh_argv, write_known_hosts
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.text import index_range_text


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
        message = f"cluster {cluster} does not exist" if cluster else "no cluster is running"
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
