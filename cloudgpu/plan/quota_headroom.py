"""Limit, usage and headroom for a quota on running instances."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class VcpuHeadroom:
    """A quota's limit and usage in one region, counted in vCPUs of running instances."""

    limit_vcpus: int
    """Maximum number of vCPUs."""
    used_vcpus: int | None
    """vCPUs of running instances; None if the instances could not be counted."""
    read_at: datetime | None = None
    """Time at which the limit or the usage was read, whichever is earlier, in UTC; None if unknown."""

    @property
    def free_vcpus(self) -> int | None:
        """Number of vCPUs that can still be launched, at least 0; None if unknown."""
        return None if self.used_vcpus is None else max(0, self.limit_vcpus - self.used_vcpus)

    def since(self, *, live: bool) -> str:
        """Return ` (as of 2026-11-21 12:00 UTC)` for a cached quota in an offline plan; otherwise empty."""
        return "" if live or self.read_at is None else f" (as of {self.read_at:%Y-%m-%d %H:%M} UTC)"
