"""Injected node faults: the nodes that each fault of a host affects, and the faults that affect one node."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.rehearsal.faults.node_faults import BOOT_FAULTS, NodeFault, NodeFaultKind
from cloudgpu.rehearsal.node_spec import NodeSpec
from cloudgpu.rehearsal.nodes.record import SimulatedNodeRecord


class FaultInjector:
    """The active faults of one node host. Each fault affects at most `count` nodes, and each node at most once."""

    def __init__(self) -> None:
        self._faults: list[tuple[NodeFault, set[str]]] = []

    def put(self, faults: Sequence[NodeFault]) -> None:
        """Replace all faults and forget which nodes were affected."""
        self._faults = [(fault, set()) for fault in faults]

    def at_boot(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults that affect a booting node, including faults that already affected the node."""
        return tuple(
            fault for fault, affected in self._faults if spec.instance_id in affected or _claim(fault, affected, spec)
        )

    def now(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults that newly affect a running node."""
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
    """The faults of one node: those of its current boot or, while the node is off, those of its next boot."""

    active: tuple[NodeFault, ...] = ()

    def find(self, kind: NodeFaultKind) -> NodeFault | None:
        """Return the first active fault of this kind, or None."""
        return next((fault for fault in self.active if fault.do == kind), None)

    def has(self, kind: NodeFaultKind) -> bool:
        """Return True if a fault of this kind is active."""
        return self.find(kind) is not None

    def plus(self, added: Sequence[NodeFault]) -> "NodeFaults":
        """Return these faults and the added ones."""
        return NodeFaults((*self.active, *added))

    @property
    def clock_skew_s(self) -> float:
        """Return how far the node's clock is ahead of the cloud's, in seconds."""
        skew = self.find("clock-skew")
        return skew.seconds if skew else 0.0

    @property
    def home_limit_kib(self) -> int:
        """Return the limit for the size of the login user's home directory, or 0 for no limit."""
        full = self.find("disk-full")
        return full.kib if full else 0

    def new_notices(self, record: SimulatedNodeRecord, now_s: float) -> dict[str, float]:
        """Return the changes to the record that announce a spot interruption or recommend a rebalance, once each."""
        changes: dict[str, float] = {}
        notice = self.find("spot-notice")
        if notice and not record.spot_end_epoch_s:
            changes["spot_end_epoch_s"] = now_s + notice.seconds
        if self.has("rebalance") and not record.rebalance_epoch_s:
            changes["rebalance_epoch_s"] = now_s
        return changes
