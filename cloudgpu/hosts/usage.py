"""The present GPU usage of the hosts in an inventory. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudgpu.hosts.host import HostsFile, OwnHost


@dataclass(frozen=True)
class HostSeen:
    """The GPU usage that a host reported.

    Attributes:
        problem: Why it did not answer, or what is wrong with it; empty if nothing is.
        gpus: Number of GPUs.
        taken: One line for every lease and every process on its GPUs.
        busy: Indices of the GPUs in use.
    """

    problem: str = ""
    gpus: int = 0
    taken: tuple[str, ...] = ()
    busy: frozenset[int] = frozenset()

    @property
    def free(self) -> int:
        """Number of free GPUs."""
        return len(set(range(self.gpus)) - self.busy)


@dataclass(frozen=True)
class HostsView:
    """An inventory and the usage of its hosts. Hosts without an entry were not queried."""

    file: HostsFile
    seen: Mapping[str, HostSeen] = field(default_factory=dict)
    running: tuple[tuple[tuple[str, ...], int], ...] = ()
    """The hosts of each cluster of the caller's that is up, and how many GPUs of each it has."""

    @property
    def asked(self) -> bool:
        """True if any host was queried."""
        return bool(self.seen)

    def usable(self, host: OwnHost, gpus: int) -> bool:
        """Return True unless the host is known to have fewer free GPUs than requested."""
        told = self.seen.get(host.name)
        return told is None or (not told.problem and told.free >= gpus)
