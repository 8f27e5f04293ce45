"""Track which nodes each injected fault has affected, and which faults are active on one node."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.rehearsal.faults.node_faults import BOOT_FAULTS, NodeFault, NodeFaultKind
from cloudgpu.rehearsal.nodes.record import SimulatedNodeRecord
from cloudgpu.rehearsal.nodes.values import NodeSpec

_SYSTEM_NOT_READY = 802
"""CUDA's error on nodes with NVSwitch while Fabric Manager is not ready."""


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
