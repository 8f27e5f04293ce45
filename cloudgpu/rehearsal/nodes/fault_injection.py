"""Select the nodes that the active faults affect: each node once, and at most as many as a fault allows."""

from collections.abc import Sequence

from cloudgpu.rehearsal.faults.node_faults import AT_BOOT, NodeFault
from cloudgpu.rehearsal.node_spec import NodeSpec


class FaultInjector:
    """The active faults of one node host."""

    def __init__(self) -> None:
        self._faults: list[tuple[NodeFault, set[str]]] = []

    def put(self, faults: Sequence[NodeFault]) -> None:
        """Replace all faults and forget which nodes were affected."""
        self._faults = [(fault, set()) for fault in faults]

    def at_boot(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults of a booting node, including those that affected it before."""
        return tuple(
            fault for fault, struck in self._faults if spec.instance_id in struck or _claim(fault, struck, spec)
        )

    def now(self, spec: NodeSpec) -> tuple[NodeFault, ...]:
        """Return the faults that newly affect a running node."""
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
