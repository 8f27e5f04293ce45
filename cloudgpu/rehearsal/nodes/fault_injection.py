"""Which nodes the faults in force befall, each of them once, and at most as many as a fault says."""

from collections.abc import Sequence

from cloudgpu.rehearsal.faults.node_faults import AT_BOOT, NodeFault
from cloudgpu.rehearsal.node_spec import NodeSpec


class FaultInjector:
    """The faults of one node host."""

    def __init__(self) -> None:
        self._faults: list[tuple[NodeFault, set[str]]] = []

    def put(self, faults: Sequence[NodeFault]) -> None:
        """Replace all faults; nodes that were struck count no longer."""
        self._faults = [(fault, set()) for fault in faults]

    def at_boot(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """What befalls a node that boots; what befell it before still does."""
        return tuple(
            fault for fault, struck in self._faults if spec.instance_id in struck or _claim(fault, struck, spec)
        )

    def now(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """What befalls a living node that it has not befallen yet."""
        return tuple(
            fault
            for fault, struck in self._faults
            if fault.do not in AT_BOOT and spec.instance_id not in struck and _claim(fault, struck, spec)
        )


def _claim(fault: NodeFault, struck: set[str], spec: NodeSpec) -> bool:
    if not fault.can_affect(spec) or (fault.count is not None and len(struck) >= fault.count):
        return False
    struck.add(spec.instance_id)
    return True
