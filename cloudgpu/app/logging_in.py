"""`ssh`: the real OpenSSH client's command line for one node."""

from collections.abc import Callable, Sequence
from pathlib import Path

from cloudgpu.app.records import ClusterRecord, Records
from cloudgpu.app.standing import stored_inventory
from cloudgpu.clock import Clock
from cloudgpu.errors import ConnectError, HostKeyError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.remote.connection import SshHost, dial
from cloudgpu.remote.handshake import AuthRefusedError
from cloudgpu.remote.ssh_command import Gate, ssh_argv, write_known_hosts


def login(
    records: Records,
    home: Home,
    key: Path,
    clock: Clock,
    *,
    cluster: str,
    index: int,
    command: Sequence[str] = (),
    admit: Callable[[ClusterRecord], object],
) -> list[str]:
    """The argument vector; the node's key is pinned in a known_hosts file of the cluster's own.

    `admit` opens the way to who has moved; it is asked only where the node does not answer, because it asks the cloud.

    Raises:
        UsageError: No such cluster or node.
        ConnectError: The node cannot be reached, or shows another key.
    """
    record = records.cluster(cluster) if cluster else None
    if record is None:
        message = f"there is no cluster {cluster}" if cluster else "no cluster is up"
        raise UsageError(message, hint="`cloudgpu status` lists the clusters")
    nodes = stored_inventory(home, record).nodes
    if not 0 <= index < len(nodes):
        message = f"cluster {cluster} has no node {index}; its nodes are 0 to {len(nodes) - 1}"
        raise UsageError(message)

    def argv() -> list[str]:
        return _argv(nodes, index, home.cluster(cluster).root, key, clock, command)

    try:
        return argv()
    except (HostKeyError, AuthRefusedError):
        raise
    except ConnectError:
        admit(record)
        return argv()


def _argv(nodes: Sequence[Node], index: int, root: Path, key: Path, clock: Clock, command: Sequence[str]) -> list[str]:
    node = nodes[index]

    def pinned(host: SshHost) -> Path:
        return write_known_hosts(root / f"known_hosts.{host.node.index}", host.node, host.server_key())

    if node.jump is None:
        with dial(node, key, clock=clock) as host:
            return ssh_argv(node, key=key, known_hosts=pinned(host), command=command)
    with dial(nodes[node.jump], key, clock=clock) as first, dial(node, key, clock=clock, via=first) as host:
        gate = Gate(first.node, pinned(first))
        return ssh_argv(node, key=key, known_hosts=pinned(host), command=command, gate=gate)
