"""Node faults: parsed from a script, sent to the node host as JSON, and tracked there by node."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.nodes.record import SimulatedNodeRecord
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
_SYSTEM_NOT_READY = 802
"""CUDA's error on nodes with NVSwitch while Fabric Manager is not ready."""


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


class FaultInjector:
    """The active node faults of one node host. A fault affects at most `count` nodes; None means no limit."""

    def __init__(self) -> None:
        self._faults: list[tuple[NodeFault, set[str]]] = []

    def put(self, faults: Sequence[NodeFault]) -> None:
        """Replace all faults. The new faults have not affected any node yet."""
        self._faults = [(fault, set()) for fault in faults]

    def at_boot(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults that affect a booting node, including those that affected the node earlier."""
        return tuple(
            fault for fault, affected in self._faults if spec.instance_id in affected or _claim(fault, affected, spec)
        )

    def now(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults that begin to affect a running node, and record the node as affected.

        Faults that take effect only at boot are excluded.
        """
        return tuple(
            fault
            for fault, affected in self._faults
            if fault.do not in BOOT_FAULTS and spec.instance_id not in affected and _claim(fault, affected, spec)
        )


def _claim(fault: NodeFault, affected: set[str], spec: NodeSpec) -> bool:
    if not fault.can_affect(spec) or (fault.count is not None and len(affected) >= fault.count):
        return False
    affected.add(spec.instance_id)
    return True


@dataclass(frozen=True)
class NodeFaults:
    """The faults that have affected one node since the node last booted."""

    active: tuple[NodeFault, ...] = ()

    def find(self, kind: NodeFaultKind) -> NodeFault | None:
        """Return the first active fault of this kind, or None."""
        return next((fault for fault in self.active if fault.do == kind), None)

    def has(self, kind: NodeFaultKind) -> bool:
        """Return True if a fault of this kind is active."""
        return self.find(kind) is not None

    def plus(self, added: Sequence[NodeFault]) -> "NodeFaults":
        """Return a copy with these faults added."""
        return NodeFaults((*self.active, *added))

    @property
    def clock_skew_s(self) -> float:
        """Seconds by which the node's clock is ahead of the cloud's clock."""
        skew = self.find("clock-skew")
        return skew.seconds if skew else 0.0

    @property
    def home_limit_kib(self) -> int:
        """Maximum size of the login user's home directory in KiB, or 0 for no limit."""
        full = self.find("disk-full")
        return full.kib if full else 0

    @property
    def cuda_error(self) -> int:
        """Error of CUDA's initialization, or 0 if CUDA is not affected."""
        failing = self.find("cuda-fails")
        return failing.error if failing else _SYSTEM_NOT_READY if self.has("fabric-manager-down") else 0

    def new_notices(self, record: SimulatedNodeRecord, now_s: float) -> dict[str, float]:
        """Return the record fields to set for a spot notice or rebalance recommendation that is not recorded yet."""
        changes: dict[str, float] = {}
        notice = self.find("spot-notice")
        if notice and not record.spot_end_epoch_s:
            changes["spot_end_epoch_s"] = now_s + notice.seconds
        if self.has("rebalance") and not record.rebalance_epoch_s:
            changes["rebalance_epoch_s"] = now_s
        return changes
