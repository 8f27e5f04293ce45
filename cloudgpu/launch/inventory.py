"""The seam between provisioning and running: which nodes there are and how to reach them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Node:
    """One node of a cluster. Nodes are ordered by `index`; index 0 is the head."""

    index: int
    instance_id: str
    address: str
    """Where the caller reaches its SSH server."""
    port: int
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
        return {"cluster": self.cluster, "nodes": [asdict(node) for node in self.nodes]}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Inventory":
        """Read `as_json` back; fields that a newer version added are ignored."""
        known = Node.__dataclass_fields__
        nodes = [{key: value for key, value in node.items() if key in known} for node in stored["nodes"]]
        return cls(
            stored["cluster"],
            tuple(Node(**{**node, "host_keys": tuple(node["host_keys"])}) for node in nodes),
        )
