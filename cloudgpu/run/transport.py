"""The network between a run's nodes, as the agents read it from NCCL's log: what it is, and what a slower one costs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.catalog import load as load_catalog
from cloudgpu.catalog.nccl_variables import has_efa
from cloudgpu.errors import RemoteCommandError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.agent.transport import EFA, TCP, UNKNOWN
from cloudgpu.run.progress import Emit, Note
from cloudgpu.text import printable

_LONGEST_NAME, _LONGEST_LINE = 24, 300
TCP_FLOW_GBPS: Final = 10
"""Upper limit of one TCP flow in a cluster placement group, in Gb/s; 5 outside. EC2 User Guide, placement groups."""
PLUGIN_HINT: Final = (
    "NCCL uses EFA through the plugin aws-ofi-nccl, which images/efa-nccl adds to an image; "
    "`resources.network: efa` fails such a run"
)
_FIELDS: Final = {"name": _LONGEST_NAME, "line": _LONGEST_LINE, "why": _LONGEST_LINE}


@dataclass(frozen=True)
class NodeTransport:
    """The network that NCCL uses on one node.

    Attributes:
        node: Index of the node.
        name: `efa`, `tcp`, `ib` or another name; `unknown` until NCCL has named it.
        line: What NCCL printed about it.
        why: What NCCL printed about a plugin that it could not use.
    """

    node: int
    name: str
    line: str = ""
    why: str = ""

    @classmethod
    def of(cls, node: int, answer: object) -> "NodeTransport":
        """Parse an agent's message. The content is untrusted, because the node may be compromised."""
        if not isinstance(answer, dict) or not answer.get("name"):
            raise RemoteCommandError("the agent sent a malformed network message")
        name, line, why = (_text(answer, key, longest) for key, longest in _FIELDS.items())
        return cls(node, name, line, why)


def _text(answer: Mapping[str, Any], key: str, longest: int) -> str:
    return printable(str(answer.get(key) or "")[:longest])


def slowest(transports: Iterable[NodeTransport]) -> NodeTransport | None:
    """Return the transport that limits the run: TCP before others, EFA only if there is nothing else; None if empty."""
    order = {TCP: 0, EFA: 2, UNKNOWN: 3}
    return min(transports, key=lambda transport: (order.get(transport.name, 1), transport.node), default=None)


def describe_transport(name: str, instance_type: str, network: str) -> str:
    """Describe the network that a run used between its nodes, with the cost of a slower one.

    Args:
        name: Name of the network, or `unknown`.
        instance_type: Type of the nodes.
        network: `resources.network` of the recipe.
    """
    if name == UNKNOWN:
        required = "; network: efa was required but not confirmed" if network == "efa" else ""
        return f"unknown: NCCL named no network{required}"
    if not is_slower(name, instance_type, network):
        return name
    return f"{name}, although {instance_type} has EFA{_cost(instance_type) if name == TCP else ''}"


def is_slower(name: str, instance_type: str, network: str) -> bool:
    """Return True if a run did not use the EFA that its nodes have and that its recipe allows."""
    return name not in (EFA, UNKNOWN) and network != "tcp" and has_efa(instance_type)


def _cost(instance_type: str) -> str:
    """Return what TCP costs on a type of node: the limit of a flow beside the node's bandwidth."""
    known = load_catalog().types.get(instance_type)
    of = "" if known is None or known.network_gbps is None else f" of the node's {known.network_gbps:f}"
    return f": a TCP flow carries at most {TCP_FLOW_GBPS}{of} Gb/s"


class RunNetwork:
    """The network that a run's nodes report. Shows it once, and warns if it is slower than the one that they have.

    Args:
        emit: Function that receives the notes.
        network: `resources.network` of the recipe.
        inventory: Nodes of the run.
    """

    def __init__(self, emit: Emit, network: str, inventory: Inventory) -> None:
        self._emit = emit
        self._network = network
        self._inventory = inventory
        self._by_node: dict[int, NodeTransport] = {}
        self._shown = ""
        self._warned = False

    @property
    def name(self) -> str:
        """The slowest network that a node has reported, `unknown`, or an empty string if the agents watch none."""
        reported = slowest(self._by_node.values())
        return "" if reported is None else reported.name

    def add(self, reported: NodeTransport) -> None:
        """Process a node's message."""
        self._by_node[reported.node] = reported
        name = self.name
        if reported.name == UNKNOWN and reported.why and not self._warned:
            self._warned = True
            text = f"warning: NCCL will not use EFA between the nodes: {reported.why}; {PLUGIN_HINT}"
            self._emit(Note(text, reported.node))
        if name in (UNKNOWN, self._shown):
            return
        self._shown = name
        instance_type = self._inventory.head.instance_type if self._inventory.nodes else ""
        text = f"network between the nodes: {describe_transport(name, instance_type, self._network)}"
        if is_slower(name, instance_type, self._network):
            why = f" (NCCL: {reported.why})" if reported.why else ""
            text = f"warning: {text}{why}; {PLUGIN_HINT}"
        self._emit(Note(text, reported.node))
