"""Self-managed hosts as described in the inventory file, and the current usage of their GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

PORT = 22


@dataclass(frozen=True)
class Jump:
    """A jump host, with its pinned host keys if the inventory contains them."""

    user: str
    address: str
    port: int
    host_keys: tuple[str, ...] = ()

    @property
    def spelled(self) -> str:
        """The jump host as `user@host:port`, with an IPv6 address in brackets."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"


@dataclass(frozen=True)
class OwnHost:
    """A self-managed host from the inventory.

    An unknown hardware field or price is None, 0 or an empty string.

    Attributes:
        line: Line number of the host's entry in the inventory file.
        jump: Jump host, or None for a direct connection.
        key: Private key for the host, or None for the caller's default key.
        gpu: Catalog name of the GPU model.
        gpus: Number of GPUs.
        gpu_memory_gib: Memory of each GPU.
        memory_gib: Main memory.
        rate_usd: Hourly price of the whole host in USD.
        pool: Name of the host's pool, or empty. A cluster never spans pools.
    """

    name: str
    address: str
    port: int
    user: str
    line: int
    jump: Jump | None = None
    key: Path | None = None
    host_keys: tuple[str, ...] = ()
    gpu: str = ""
    gpus: int = 0
    gpu_memory_gib: Decimal | None = None
    memory_gib: int | None = None
    cores: int | None = None
    driver: str = ""
    private_address: str = ""
    network_interface: str = ""
    rate_usd: Decimal | None = None
    pool: str = ""
    keep_cache: bool = False

    @property
    def inner_address(self) -> str:
        """Address at which other hosts reach this host."""
        return self.private_address or self.address

    @property
    def kind(self) -> tuple[str, int, Decimal | None]:
        """GPU model, count and memory, all of which must be the same on every host of a cluster."""
        return self.gpu, self.gpus, self.gpu_memory_gib


@dataclass(frozen=True)
class HostsFile:
    """An inventory, with its hosts in file order."""

    path: Path
    hosts: tuple[OwnHost, ...]
    by_name: Mapping[str, OwnHost] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {host.name: host for host in self.hosts})

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of all pools, in file order."""
        return tuple(dict.fromkeys(host.pool for host in self.hosts if host.pool))


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
