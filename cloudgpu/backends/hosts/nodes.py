"""Convert inventory hosts to cluster nodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloudgpu.hosts.host import OwnHost
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.known_hosts import known_keys

HOSTS_DIRECTORY = ".cloudgpu/hosts"
"""Directory in the login user's home that contains one directory per cluster."""
QUERY_DIRECTORY = f"{HOSTS_DIRECTORY}/-"
"""Value of `Node.base` for hosts that are only queried. The directory is never created."""


def node_of(host: OwnHost, known_hosts: Sequence[Path], *, index: int = 0) -> Node:
    """Return a host as a node to connect to.

    The host keys come from the inventory or, if the inventory has none for this host, from the caller's known_hosts
    files. No connection is made to a host whose key is unknown.
    """
    jump = host.jump
    return Node(
        index=index,
        instance_id=host.name,
        address=host.address,
        port=host.port,
        user=host.user,
        host_keys=host.host_keys or known_keys(host.address, host.port, known_hosts),
        private_address=host.inner_address,
        instance_type="",
        zone=host.name,
        gpu=host.gpu,
        gpus=host.gpus,
        simulated=False,
        bastion="" if jump is None else jump.spelled,
        bastion_keys=() if jump is None else jump.host_keys,
        key="" if host.key is None else str(host.key),
        interface=host.network_interface,
        base=QUERY_DIRECTORY,
    )


def cluster_member(node: Node, cluster: str, token: str, instance_type: str, gpus: int) -> Node:
    """Return the node as a member of a cluster that leases `gpus` GPUs of the host."""
    base = f"{HOSTS_DIRECTORY}/{cluster}-{token[:8]}-{node.zone}"  # hosts may share a home directory
    return replace(node, instance_id=f"{node.zone}@{cluster}", instance_type=instance_type, gpus=gpus, base=base)


def host_of(instance_id: str) -> str:
    """Return the host of a cluster node, such as `red` for `red@quickstart`."""
    return instance_id.rpartition("@")[0]


def cluster_directory(node: Node, home: str) -> str:
    """Return the cluster's directory below the login user's home directory."""
    return f"{home}/{node.base}"
