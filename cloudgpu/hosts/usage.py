"""Current GPU usage of the hosts in an inventory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudgpu.hosts.host import HostsFile, OwnHost


@dataclass(frozen=True)
class HostSeen:
    """The GPU usage that a host reported.

    Attributes:
        problem: Reason why the host cannot be used, for example that it did not respond; empty if it can be used.
        gpus: Number of GPUs.
        taken: One line for each GPU lease, and one for each process that uses a GPU without a lease.
        busy: Indices of the GPUs in use.
        engine_problem: Reason why the host's Docker engine cannot run containers; empty if it can.
    """

    problem: str = ""
    gpus: int = 0
    taken: tuple[str, ...] = ()
    busy: frozenset[int] = frozenset()
    engine_problem: str = ""

    @property
    def free(self) -> int:
        """Number of free GPUs."""
        return len(set(range(self.gpus)) - self.busy)


@dataclass(frozen=True)
class HostsView:
    """An inventory and the usage of its hosts. Hosts without an entry in `seen` were not queried."""

    file: HostsFile
    seen: Mapping[str, HostSeen] = field(default_factory=dict)
    running: tuple[tuple[tuple[str, ...], int], ...] = ()
    """For each of the caller's running clusters: the names of its hosts, and the number of GPUs used on each host."""

    @property
    def asked(self) -> bool:
        """Whether any host was queried."""
        return bool(self.seen)

    def may_have_free_gpus(self, host: OwnHost, gpus: int) -> bool:
        """Return True if the host was not queried, or if it has no problem and at least this many free GPUs."""
        usage = self.seen.get(host.name)
        return usage is None or (not usage.problem and usage.free >= gpus)
