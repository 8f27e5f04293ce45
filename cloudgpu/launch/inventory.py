"""The nodes of a cluster: the output of provisioning and the input to runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal

from cloudgpu import bounds
from cloudgpu.decoding import decode_as

ALIVE_STATES: Final = frozenset({"pending", "running"})
"""States of an instance that runs or is about to run."""
_PORT_OFFSET = 10000
_LAST_PORT = 65535


def _port(number: int) -> None:
    bounds.checked_count(number, 1, _LAST_PORT)


@dataclass(frozen=True)
class Node:
    """A node of a cluster. Nodes are ordered by `index`; index 0 is the head node."""

    index: int
    instance_id: str
    address: str
    """SSH address as seen from the caller."""
    port: Annotated[int, _port]
    user: str
    host_keys: tuple[str, ...]
    """Pinned host key fingerprints, `SHA256:...`. cloudgpu does not connect to a node without a pinned key."""
    private_address: str
    """Address as seen from the other nodes."""
    instance_type: str
    zone: str
    gpu: str
    gpus: int
    simulated: bool
    jump: int | None = None
    """Index of the cluster node that serves as the jump host, or None."""
    reach: Literal["direct", "ssm"] = "direct"
    """SSH transport: a direct connection or Session Manager. With `ssm`, `address` is the instance ID."""
    bastion: str = ""
    """The user's jump host, `user@host[:port]`; empty if there is none."""
    bastion_keys: tuple[str, ...] = ()
    """Pinned host keys of the jump host. If empty, the user's known_hosts file applies."""
    key: str = ""
    """Private key for this node and its jump host; empty for the caller's default key."""
    devices: tuple[int, ...] = ()
    """Indices of the GPUs that belong to the cluster and that ranks can see; empty if the cluster has all GPUs."""
    interface: str = ""
    """Network interface that has the private address; empty if not configured."""
    booted: bool = field(default=False, compare=False)
    """Whether the first boot has finished, after which a refused login is not retried. Never stored."""
    efa: int = 0
    """EFA interfaces with which the node was launched; 0 also for nodes that earlier versions recorded."""
    base: str = ""
    """Directory of the cluster below the login user's home directory on a self-managed host; otherwise empty."""

    @property
    def own(self) -> bool:
        """True for a self-managed host, which is not terminated with the cluster."""
        return bool(self.base)


def loopback_address(node: Node) -> str:
    """Return the loopback address on which the node's programs listen.

    Nodes that share this machine each have their own loopback address.
    """
    return node.private_address if shares_this_machine(node) else "127.0.0.1"


def shares_this_machine(node: Node) -> bool:
    """Return True if the node shares the caller's loopback interface, as rehearsal nodes do."""
    return node.private_address.startswith("127.")


def default_local_port(node: Node, port: int) -> int:
    """Return the default local port for a tunnel to a node's port.

    The local port is the same number, unless the node shares this machine, so that its program already uses that port.
    """
    if not shares_this_machine(node):
        return port
    return port + _PORT_OFFSET if port + _PORT_OFFSET <= _LAST_PORT else port - _PORT_OFFSET


@dataclass(frozen=True)
class Inventory:
    """The nodes of one cluster, in order."""

    cluster: str
    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        """The head node, to which the agents of the other nodes connect."""
        return self.nodes[0]

    def as_json(self) -> dict[str, Any]:
        """Return the contents of `inventory.json`."""
        return {"cluster": self.cluster, "nodes": [_stored(node) for node in self.nodes]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Inventory":
        """Parse the output of `as_json`. Unknown fields from newer versions are ignored."""
        return decode_as(cls, stored)


def _stored(node: Node) -> dict[str, Any]:
    fields = asdict(node)
    del fields["booted"]
    if not node.efa:
        del fields["efa"]  # a file that an earlier version wrote stays the same
    return fields
