"""Provide the planner with the hosts of the inventory and the current use of their GPUs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cloudgpu.backends.base import Offers
from cloudgpu.catalog.gpu_spec import parse_gpu_spec
from cloudgpu.hosts.host import HostsFile, OwnHost
from cloudgpu.hosts.usage import HostSeen, HostsView
from cloudgpu.plan.candidates.host_sets import matching_hosts
from cloudgpu.plan.planner_input import PlannerInput

RunningClusters = tuple[tuple[tuple[str, ...], int], ...]
"""For each running cluster: its hosts, and the number of GPUs that the cluster leases on each host."""
_NO_REGION = "us-east-1"
"""Placeholder that is never queried: `PlannerInput` requires a region, but self-managed hosts do not have one."""


@dataclass(frozen=True)
class HostOffers(Offers):
    """The hosts of one inventory. They have no regions.

    Attributes:
        file: Function that reads the inventory.
        look: Function that queries the GPU usage of hosts. Not called when planning offline.
        running: Function that returns, for each running cluster, its hosts and the number of GPUs leased on each host.
    """

    file: Callable[[], HostsFile]
    look: Callable[[Sequence[OwnHost]], Mapping[str, HostSeen]]
    running: Callable[[], RunningClusters]
    offline: bool

    def quote(self, question: PlannerInput) -> PlannerInput:
        """Add the inventory and, unless offline, the GPU usage of the matching hosts to the planner's input."""
        view = HostsView(self.file(), running=self.running())
        question = replace(question, default_region=_NO_REGION, hosts=view)
        if self.offline:
            return question
        hosts = dict.fromkeys(
            host for spec in question.specs for host in matching_hosts(question, parse_gpu_spec(spec))
        )
        # If no host matches, a finding of the plan explains why.
        seen = self.look(list(hosts)) if hosts else {}
        if question.recipe.environment.container is not None:
            seen = {name: _for_containers(state) for name, state in seen.items()}
        return replace(question, hosts=replace(view, seen=seen))


def _for_containers(state: HostSeen) -> HostSeen:
    """Return the state of a host that must run a container, and so needs a working Docker engine."""
    return replace(state, problem=state.problem or state.engine_problem)
