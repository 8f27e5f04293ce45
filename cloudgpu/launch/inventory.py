"""The nodes of a cluster: the interface between provisioning and running."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from cloudgpu import bounds
from cloudgpu.decoding import decoded

_AWAY = 10000
_LAST_PORT = 65535


def _port(number: int) -> None:
    bounds.count(number, 1, _LAST_PORT)


@dataclass(frozen=True)
class Node:
    """A node of a cluster. Nodes are ordered by `index`; index 0 is the head."""

    index: int
    instance_id: str
    address: str
    """SSH address as seen from the caller."""
    port: Annotated[int, _port]
    user: str
    host_keys: tuple[str, ...]
    """Pinned host key fingerprints, `SHA256:...`; never empty for a node that may be connected to."""
    private_address: str
    """Address as seen from the other nodes."""
    instance_type: str
    zone: str
    gpu: str
    gpus: int
    simulated: bool
    jump: int | None = None
    """Index of the jump node, or None for a direct connection."""
    reach: Literal["direct", "ssm"] = "direct"
    """SSH transport. With `ssm` the address is the instance id."""
    bastion: str = ""
    """The user's jump host, `user@host[:port]`, or empty."""
    bastion_keys: tuple[str, ...] = ()
    """Pinned host keys of the jump host. If empty, the user's known_hosts applies."""
    key: str = ""
    """Private key for this node and its jump host, if it differs from the caller's default key."""
    devices: tuple[int, ...] = ()
    """GPU indices that belong to the cluster, if not all do. The ranks see only these."""
    interface: str = ""
    """Network interface of the private address, if configured."""
    booted: bool = field(default=False, compare=False)
    """True once the first boot has finished, so that a refused login is final. Never stored."""
    base: str = ""
    """On a self-managed host: the cluster's directory below the login user's home."""

    @property
    def own(self) -> bool:
        """Return True for a self-managed host, which is not terminated with the cluster."""
        return bool(self.base)


def loopback(node: Node) -> str:
    """Return the node's own loopback address, which is unusual only for nodes that share this machine."""
    return node.private_address if shares_this_machine(node) else "127.0.0.1"


def shares_this_machine(node: Node) -> bool:
    """Return True if the node shares the caller's loopback interface, as rehearsal nodes do."""
    return node.private_address.startswith("127.")


def usual_local(node: Node, port: int) -> int:
    """Return the default local port for a port of a node, which is the same number.

    It differs for nodes that share this machine, whose programs use the port themselves.
    """
    if not shares_this_machine(node):
        return port
    return port + _AWAY if port + _AWAY <= _LAST_PORT else port - _AWAY


@dataclass(frozen=True)
class Inventory:
    """The nodes of one cluster, in order."""

    cluster: str
    nodes: tuple[Node, ...]

    @property
    def head(self) -> Node:
        """Return the head node, to which the others report."""
        return self.nodes[0]

    def as_json(self) -> dict[str, Any]:
        """Return the contents of `inventory.json`."""
        return {"cluster": self.cluster, "nodes": [_stored(node) for node in self.nodes]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Inventory":
        """Parse the output of `as_json`. Unknown fields from newer versions are ignored.

        Raises:
            ValueError: It has another shape.
        """
        return decoded(cls, stored)


def _stored(node: Node) -> dict[str, Any]:
    fields = asdict(node)
    del fields["booted"]
    return fields
