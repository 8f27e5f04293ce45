"""Select the nodes that each active fault affects: each node at most once, and at most `count` nodes."""

from collections.abc import Sequence

from cloudgpu.rehearsal.faults.node_faults import BOOT_FAULTS, NodeFault
from cloudgpu.rehearsal.node_spec import NodeSpec


class FaultInjector:
    """The active faults of one node host, and the nodes that each fault has affected."""

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
