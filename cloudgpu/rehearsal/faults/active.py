"""The active faults of one server, which are replaced and reported as a whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudgpu.rehearsal.aws_api.ec2.capacity_tables import Market
from cloudgpu.rehearsal.aws_api.interfaces import NodeHost
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions
from cloudgpu.rehearsal.faults.api_faults import FaultRules, conditions_from
from cloudgpu.rehearsal.faults.node_faults import NodeFault, node_fault_from

_PARTS: Mapping[str, type] = {
    "names": list, "rules": list, "capacity": dict, "quotas": dict, "cloud": dict, "nodes": list,
}  # fmt: skip


@dataclass
class ActiveFaults:
    """The active faults of one server. Only the capacity and quota tables are saved to disk."""

    faults: FaultRules
    market: Market
    behaviour: ActiveConditions
    host: NodeHost
    names: list[str] = field(default_factory=list)
    cloud: dict[str, Any] = field(default_factory=dict)
    nodes: list[NodeFault] = field(default_factory=list)

    def put(self, row: Mapping[str, Any]) -> None:
        """Replace all active faults."""
        parts = {name: row.get(name, kind()) for name, kind in _PARTS.items()}
        for name, kind in _PARTS.items():
            if not isinstance(parts[name], kind):
                message = f"{name} is not a {kind.__name__}"
                raise ValueError(message)  # noqa: TRY004 - the caller turns it into an HTTP response
        conditions = conditions_from(parts["cloud"])
        nodes = [node_fault_from(fault) for fault in parts["nodes"]]
        self.market.put_capacity(parts["capacity"])
        self.market.put_quotas(parts["quotas"])
        self.faults.put(parts["rules"])
        self.behaviour.put(conditions)
        self.names, self.cloud = [str(name) for name in parts["names"]], dict(parts["cloud"])
        if nodes or self.nodes:
            self.host.put_faults(nodes)
        self.nodes = nodes

    def shown(self) -> dict[str, Any]:
        """Return the active faults and the number of calls that conditions affected, as JSON values."""
        return {
            "names": self.names,
            "rules": self.faults.shown()["rules"],
            "capacity": self.market.capacity,
            "quotas": self.market.quotas,
            "cloud": self.cloud,
            "struck": self.behaviour.times_applied,
            "nodes": [{"do": fault.do, "match": dict(fault.match), "count": fault.count} for fault in self.nodes],
        }
