"""Quota on running instances: limit, usage and headroom."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class QuotaRoom:
    """A quota in one region and its use, in vCPUs of running instances."""

    limit_vcpus: int
    """vCPUs that the account may run."""
    used_vcpus: int | None
    """vCPUs that the account runs now; None if the instances could not be counted."""
    read_at: datetime | None = None
    """When the quota was read, UTC; it may be cached for some minutes."""

    @property
    def free_vcpus(self) -> int | None:
        """VCPUs that can still be launched, at least 0; None if unknown."""
        return None if self.used_vcpus is None else max(0, self.limit_vcpus - self.used_vcpus)

    def since(self, *, live: bool) -> str:
        """Return ` (asked 2026-11-21 12:00 UTC)` for a cached quota in an offline plan; otherwise empty."""
        return "" if live or self.read_at is None else f" (asked {self.read_at:%Y-%m-%d %H:%M} UTC)"
