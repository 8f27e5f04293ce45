"""Connect to the nodes of a running cluster for `tunnel`, `exec` and `ssh-config`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cloudgpu.app.access.ssh import NodeLogin, find_cluster_record, node_by_index
from cloudgpu.errors import BusyError, CloudGpuError, ConnectError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import connect_all
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.text import command

ConnectionsByNode = Mapping[int, SshHost | CloudGpuError]
"""Node index -> connection to the node, or the error that prevented the connection."""


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
