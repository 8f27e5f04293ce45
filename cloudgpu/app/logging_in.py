"""`ssh`: the real OpenSSH client's command line for one node."""

from pathlib import Path

from cloudgpu.app.provisioning import stored_inventory
from cloudgpu.app.records import Records
from cloudgpu.clock import Clock
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home
from cloudgpu.remote.ssh_command import ssh_argv


def login(records: Records, home: Home, key: Path, cluster: str, index: int, clock: Clock) -> list[str]:
    """The argument vector; the node's key is pinned in a known_hosts file of the cluster's own.

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
    return ssh_argv(nodes[index], key, home.cluster(cluster).root / "known_hosts", clock=clock)
