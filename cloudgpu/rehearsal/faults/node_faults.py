"""Node faults, which are parsed from a fault script and sent to the node host as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.nodes.values import NodeSpec

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
    "newer-libraries",
    "driver-late",
    "cuda-fails",
    "fabric-manager-down",
]
BOOT_FAULTS = frozenset(
    {
        "boot-fails",
        "boot-hangs",
        "disk-full",
        "clock-skew",
        "bare-image",
        "newer-libraries",
        "driver-late",
        "cuda-fails",
        "fabric-manager-down",
    }
)
"""Faults that take effect only at boot. All other faults also affect running nodes immediately."""
_SPOT = frozenset({"spot-notice", "rebalance"})
_LARGEST_CUDA_ERROR = 9999
_FACTS = ("instance_id", "instance_type", "region", "zone")


@dataclass(frozen=True)
class NodeFault:
    """A node fault.

    `count` is the maximum number of affected nodes, or None for no limit. A node counts once, even if the fault affects
    every boot of the node.
    """

    do: NodeFaultKind
    match: Mapping[str, str] = field(default_factory=dict)
    count: int | None = None
    seconds: float = 0.0
    """Time until the interruption (`spot-notice`) or until the driver is loaded (`driver-late`); or how far ahead the
    node's clock is (`clock-skew`)."""
    kib: int = 64
    """For `disk-full`: maximum size of the login user's home directory, in KiB."""
    error: int = 999
    """For `cuda-fails`: the error of CUDA's initialization."""

    def can_affect(self, spec: NodeSpec) -> bool:
        """Return True if the fault matches this node. Spot faults match only nodes of spot instances.

        `fabric-manager-down` matches only nodes with NVSwitch, because other nodes do not need Fabric Manager.
        """
        if self.do == "fabric-manager-down" and not spec.has_nvswitch:
            return False
        if self.do in _SPOT and not spec.spot:
            return False
        return all(fnmatchcase(str(getattr(spec, name)), pattern) for name, pattern in self.match.items())


def node_fault_from(row: Mapping[str, Any]) -> NodeFault:
    """Parse one node fault."""
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
    _require_numbers(row)
    try:
        return decode_as(NodeFault, dict(row))
    except ValueError as err:
        message = f"node fault: {err}"
        raise ValueError(message) from err


def _require_numbers(row: Mapping[str, Any]) -> None:
    """Check the numbers of a fault."""
    for name in ("count", "seconds", "kib", "error"):
        value = row.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
            message = f"node fault: {name} {row[name]!r} is not a number"
            raise ValueError(message)
    if not 1 <= (row.get("error", 1) or 0) <= _LARGEST_CUDA_ERROR:
        message = f"node fault: error {row['error']} is not between 1 and {_LARGEST_CUDA_ERROR}"
        raise ValueError(message)


def node_fault_json(fault: NodeFault) -> dict[str, Any]:
    """Return the JSON form that `node_fault_from` parses. Node hosts of earlier versions know no `error`."""
    row = asdict(fault)
    return row if fault.do == "cuda-fails" else {name: value for name, value in row.items() if name != "error"}
