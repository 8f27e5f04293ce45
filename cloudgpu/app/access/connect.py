"""Reaching the nodes of a cluster that stands, without its run: for `tunnel`, `exec` and `ssh-config`."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cloudgpu.app.access.ssh import Means, chosen, recorded
from cloudgpu.errors import BusyError, CloudGpuError, ConnectError, HostKeyError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import connect_all
from cloudgpu.ssh.handshake import AuthRefusedError
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.state.records import ClusterRecord, Records
from cloudgpu.text import command

Reached = Mapping[int, SshHost | CloudGpuError]
"""Node index -> its connection, or why there is none."""


@dataclass(frozen=True)
class ClusterNodes:
    """A cluster whose nodes can be asked for.

    Attributes:
        nodes: All of them, in order.
    """

    record: ClusterRecord
    nodes: tuple[Node, ...]

    def node(self, index: int) -> Node:
        """The node that is meant.

        Raises:
            UsageError: The cluster has none of this index.
        """
        return chosen(self.nodes, self.record, index)


def find_cluster_nodes(records: Records, home: Home, means: Means, name: str) -> ClusterNodes:
    """The cluster of this name, or the one of the run of this name.

    Raises:
        UsageError: There is none, or its nodes have ended themselves.
        BusyError: It is being ended.
        StateError: It has no nodes yet.
    """
    record = recorded(records, name)
    if record.state == "ending":
        raise BusyError(f"cluster {record.name} is being ended", hint=command("cloudgpu", "down", record.name))
    if record.expires_at <= means.clock.now():
        message = f"cluster {record.name} expired at {record.expires_at:%Y-%m-%d %H:%M} UTC; its nodes ended themselves"
        raise UsageError(message, hint=command("cloudgpu", "down", record.name))
    return ClusterNodes(record, stored_inventory(home, record).nodes)


@contextmanager
def reached(means: Means, cluster: ClusterNodes, indices: Collection[int]) -> Iterator[Reached]:
    """Connections to these nodes, all at once; a node that cannot be reached is a value beside the others.

    Where one does not answer, the way to this caller is opened first: they may have moved.
    """
    asked = [node for node in cluster.nodes if node.index in indices]
    outcomes = dict(_connected(means, cluster.nodes, asked))
    silent = [node for node in asked if _may_have_moved(outcomes[node.index])]
    if silent:
        means.authorize_caller(cluster.record)
        outcomes |= _connected(means, cluster.nodes, silent)
    try:
        yield {node.index: outcomes[node.index] for node in asked}
    finally:
        for one in outcomes.values():
            if isinstance(one, SshHost):
                one.close()


def _connected(means: Means, nodes: Sequence[Node], asked: Sequence[Node]) -> Reached:
    """Those that are asked for, and what stands before them."""
    gates = {node.jump for node in asked if node.jump is not None}
    wanted = [node for node in nodes if node in asked or node.index in gates]
    return connect_all(wanted, means.key, clock=means.clock, carrier=means.ways.carrier)


def _may_have_moved(outcome: SshHost | CloudGpuError) -> bool:
    return isinstance(outcome, ConnectError) and not isinstance(outcome, HostKeyError | AuthRefusedError)
