"""Convert inventory hosts to cluster nodes, and define the responses of their agents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudgpu.hosts.host import OwnHost
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.known_hosts import known_keys

HOSTS_DIRECTORY = ".cloudgpu/hosts"
"""Directory in the login user's home that contains one directory per cluster."""
QUERY_DIRECTORY = f"{HOSTS_DIRECTORY}/-"
"""Value of `Node.base` for hosts that are only queried. The directory is never created."""


@dataclass(frozen=True)
class LeaseRow:
    """A lease on some of a host's GPUs."""

    cluster: str
    owner: str
    gpus: tuple[int, ...]
    mine: bool
    told: str


@dataclass(frozen=True)
class ProcessRow:
    """A process that uses one of the host's GPUs."""

    gpu: int
    told: str


@dataclass(frozen=True)
class EngineState:
    """The state of a host's Docker engine. `problem` is the reason why it cannot run containers; empty if it can."""

    version: str = ""
    rootless: bool = False
    podman: bool = False
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True)
class LeasesResponse:
    """Response to `lease` with the action `show`."""

    gpus: tuple[int, ...]
    problem: str
    leases: tuple[LeaseRow, ...]
    processes: tuple[ProcessRow, ...]
    epoch_s: int = 0
    """Time on the host's clock, in seconds since the epoch."""
    system: str = ""
    """ID of the running system, which is the same for two hosts only if they are the same machine. Empty: unknown."""
    engine: EngineState = field(default_factory=EngineState)


@dataclass(frozen=True)
class TakenResponse:
    """Response to `lease` with the action `take`."""

    devices: tuple[int, ...]
    of: int


@dataclass(frozen=True)
class ExtendedResponse:
    """Response to `lease` with the action `extend`."""

    devices: tuple[int, ...]


@dataclass(frozen=True)
class LeaveResponse:
    """Response to `leave`."""

    clusters: int
    gpus: tuple[int, ...]
    left: tuple[str, ...]


@dataclass(frozen=True)
class HostFacts:
    """Response to `describe`."""

    python: str
    hostname: str
    cpus: int
    memory_mib: int
    disk_free_mib: int
    gpus: tuple[Mapping[str, Any], ...]
    gpu_error: str
    addresses: tuple[Mapping[str, str], ...]
    docker: str
    container_toolkit: bool
    venv: bool
    uv: bool
    packages: str
    root: bool
    cuda: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineState = field(default_factory=EngineState)


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
