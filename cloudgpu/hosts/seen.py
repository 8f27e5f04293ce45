"""What the hosts of an inventory said when they were asked. Values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cloudgpu.hosts.host import HostsFile, OwnHost


@dataclass(frozen=True)
class HostSeen:
    """One host's answer.

    Attributes:
        problem: Why it did not answer, or what is wrong with it; empty where nothing is.
        gpus: How many it shows.
        taken: A line for every lease and every process on its GPUs.
        busy: The GPUs that these have.
    """

    problem: str = ""
    gpus: int = 0
    taken: tuple[str, ...] = ()
    busy: frozenset[int] = frozenset()

    @property
    def free(self) -> int:
        """GPUs that nobody has."""
        return len(set(range(self.gpus)) - self.busy)


@dataclass(frozen=True)
class HostsView:
    """An inventory, and what its hosts said; a host without an answer was not asked."""

    file: HostsFile
    seen: Mapping[str, HostSeen] = field(default_factory=dict)
    running: tuple[tuple[tuple[str, ...], int], ...] = ()
    """The hosts of each cluster of the caller's that is up, and how many GPUs of each it has."""

    @property
    def asked(self) -> bool:
        """Whether any host was asked."""
        return bool(self.seen)

    def usable(self, host: OwnHost, gpus: int) -> bool:
        """Whether so many GPUs of a host can be had as far as anybody knows."""
        told = self.seen.get(host.name)
        return told is None or (not told.problem and told.free >= gpus)
