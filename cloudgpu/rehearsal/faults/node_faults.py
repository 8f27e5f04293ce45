"""Node faults, which are parsed from a fault script and sent to the node host as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.node_spec import NodeSpec

NodeFaultKind = Literal[
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
BOOT_FAULTS = frozenset({"boot-fails", "boot-hangs", "disk-full", "clock-skew", "bare-image"})
"""Faults that take effect only at boot. All other faults also affect running nodes immediately."""
_SPOT = frozenset({"spot-notice", "rebalance"})
_FACTS = ("instance_id", "instance_type", "region", "zone")


@dataclass(frozen=True)
class NodeFault:
    """A node fault. `count` is the maximum number of affected nodes; each node is affected at most once."""

    do: NodeFaultKind
    match: Mapping[str, str] = field(default_factory=dict)
    count: int | None = None
    seconds: float = 0.0
    """For `spot-notice`: time until the interruption. For `clock-skew`: how far the node's clock is ahead."""
    kib: int = 64
    """For `disk-full`: free space in the login user's home directory, in KiB."""

    def can_affect(self, spec: NodeSpec) -> bool:
        """Return True if the fault can affect this node."""
        if self.do in _SPOT and not spec.spot:
            return False
        return all(fnmatchcase(str(getattr(spec, name)), pattern) for name, pattern in self.match.items())


def node_fault_from(row: Mapping[str, Any]) -> NodeFault:
    """Parse one node fault.

    Raises:
        ValueError: A key or fault kind is unknown, or a value is not valid.
    """
    if not isinstance(row, Mapping):
        message = "a node fault must be a mapping"
        raise ValueError(message)  # noqa: TRY004 - callers turn it into an HTTP response
    unknown = sorted(set(map(str, row)) - {item.name for item in fields(NodeFault)})
    if unknown:
        message = f"node fault: unknown key {unknown[0]!r}"
        raise ValueError(message)
    if row.get("do") not in get_args(NodeFaultKind):
        message = f"node fault: `do` must be one of {', '.join(get_args(NodeFaultKind))}, not {row.get('do')!r}"
        raise ValueError(message)
    unknown_facts = sorted(set(map(str, row.get("match") or {})) - set(_FACTS))
    if unknown_facts:
        message = f"node fault: `match` accepts {', '.join(_FACTS)}, not {unknown_facts[0]}"
        raise ValueError(message)
    for name in ("count", "seconds", "kib"):
        value = row.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            message = f"node fault: {name} {row[name]!r} is not a number"
            raise ValueError(message)
    try:
        return decode_as(NodeFault, dict(row))
    except ValueError as err:
        message = f"node fault: {err}"
        raise ValueError(message) from err


def node_fault_json(fault: NodeFault) -> dict[str, Any]:
    """Return the JSON form that `node_fault_from` parses."""
    return asdict(fault)
