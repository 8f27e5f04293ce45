"""The seam between provisioning and running: which nodes there are and how to reach them."""

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
    """One node of a cluster. Nodes are ordered by `index`; index 0 is the head."""

    index: int
    instance_id: str
    address: str
    """Where the caller reaches its SSH server."""
    port: Annotated[int, _port]
    user: str
    host_keys: tuple[str, ...]
    """Pinned host key fingerprints, `SHA256:...`; never empty for a node that may be connected to."""
    private_address: str
    """Where the other nodes reach it."""
    instance_type: str
    zone: str
    gpu: str
    gpus: int
    simulated: bool
    jump: int | None = None
    """Index of the node through which its SSH server is reached; None where the caller reaches it straight."""
    reach: Literal["direct", "ssm"] = "direct"
    """What carries SSH to it; by `ssm` its address is its instance id."""
    bastion: str = ""
    """The user's own jump host before it, `user@host[:port]`; empty where there is none."""
    bastion_keys: tuple[str, ...] = ()
    """Pinned host keys of that jump host; empty means as the user's known_hosts has them."""
    key: str = ""
    """Private key that it takes, where that is another one than the caller's usual; the jump host takes the same."""
    devices: tuple[int, ...] = ()
    """The GPUs of it that the cluster has, where it has not all; the ranks see no others."""
    interface: str = ""
    """Network interface that its private address is on, where somebody said so."""
    booted: bool = field(default=False, compare=False)
    """Whether its first boot is known to be over, so that a refused login is an answer. Never stored."""
    base: str = ""
    """On a host of one's own: the directory below the login user's home that holds all that the cluster puts there."""

    @property
    def own(self) -> bool:
        """Whether it is a host of one's own: it is there already, and nothing of it ends with the cluster."""
        return bool(self.base)


def loopback(node: Node) -> str:
    """The node's own loopback address: that of every machine, but for nodes that share this machine's."""
    return node.private_address if shares_this_machine(node) else "127.0.0.1"


def shares_this_machine(node: Node) -> bool:
    """Whether its loopback is the caller's own, as of nodes of a rehearsal."""
    return node.private_address.startswith("127.")


def usual_local(node: Node, port: int) -> int:
    """The port of the caller's machine that leads to a port of a node: the same number.

    Another one for nodes that share this machine: theirs would be taken from under their own programs.
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
        """The node that the others report to."""
        return self.nodes[0]

    def as_json(self) -> dict[str, Any]:
        """The form kept in `inventory.json`."""
        return {"cluster": self.cluster, "nodes": [_stored(node) for node in self.nodes]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Inventory":
        """Read `as_json` back; fields that a newer version added are ignored.

        Raises:
            ValueError: It has another shape.
        """
        return decoded(cls, stored)


def _stored(node: Node) -> dict[str, Any]:
    fields = asdict(node)
    del fields["booted"]
    return fields
