"""What goes wrong with nodes: read from a fault script, carried to the node host as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from cloudgpu.decoding import decoded
from cloudgpu.rehearsal.node_spec import NodeSpec

Deed = Literal[
    "boot-fails",
    "boot-hangs",
    "sshd-dies",
    "host-key-changes",
    "metadata-off",
    "disk-full",
    "clock-skew",
    "spot-notice",
    "rebalance",
    "bare-image",
]
AT_BOOT = frozenset({"boot-fails", "boot-hangs", "disk-full", "clock-skew", "bare-image"})
"""What can only befall a node that boots; the rest befalls living nodes at once, and new ones when they boot."""
_SPOT = frozenset({"spot-notice", "rebalance"})
_FACTS = ("instance_id", "instance_type", "region", "zone")


@dataclass(frozen=True)
class NodeFault:
    """One fault. `count` is how many nodes it befalls at most; each node once."""

    do: Deed
    match: Mapping[str, str] = field(default_factory=dict)
    count: int | None = None
    seconds: float = 0.0
    """Of `spot-notice`: until the end; of `clock-skew`: how far the node's clock is ahead."""
    kib: int = 64
    """Of `disk-full`: what the login user's home has room for."""

    def befalls(self, spec: NodeSpec) -> bool:
        """Whether this node is one that it is about."""
        if self.do in _SPOT and not spec.spot:
            return False
        return all(fnmatchcase(str(getattr(spec, name)), pattern) for name, pattern in self.match.items())


def node_fault_from(row: Mapping[str, Any]) -> NodeFault:
    """Read one fault of nodes.

    Raises:
        ValueError: An unknown name or deed, or a value that makes no sense.
    """
    if not isinstance(row, Mapping):
        message = "node fault: not a mapping"
        raise ValueError(message)  # noqa: TRY004 - what callers turn into an answer
    unknown = sorted(set(map(str, row)) - {item.name for item in fields(NodeFault)})
    if unknown:
        message = f"node fault: unknown key {unknown[0]!r}"
        raise ValueError(message)
    if row.get("do") not in get_args(Deed):
        message = f"node fault: `do` is one of {', '.join(get_args(Deed))}, not {row.get('do')!r}"
        raise ValueError(message)
    strange = sorted(set(map(str, row.get("match") or {})) - set(_FACTS))
    if strange:
        message = f"node fault: `match` knows {', '.join(_FACTS)}, not {strange[0]}"
        raise ValueError(message)
    for name in ("count", "seconds", "kib"):
        value = row.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            message = f"node fault: {name} {row[name]!r} is no number"
            raise ValueError(message)
    try:
        return decoded(NodeFault, dict(row))
    except ValueError as err:
        message = f"node fault: {err}"
        raise ValueError(message) from err


def node_fault_json(fault: NodeFault) -> dict[str, Any]:
    """The inverse of `node_fault_from`."""
    return asdict(fault)
