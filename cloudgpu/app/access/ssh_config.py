"""`ssh-config`: write OpenSSH configuration entries for a cluster's nodes, with pinned host keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.app.access.cluster_nodes import ClusterNodes, ConnectionsByNode
from cloudgpu.app.access.ssh import NodeLogin
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.ssh.fanout import all_or_raise
from cloudgpu.ssh.openssh import HostEntry, JumpNode, render_config, write_known_hosts
from cloudgpu.state.user_ssh_config import SshFolder, record_folder
from cloudgpu.text import command


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
