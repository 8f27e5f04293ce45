"""How much of a quota on running instances is left, as the cloud told it."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class QuotaRoom:
    """One quota of one region, in vCPUs of running instances."""

    limit_vcpus: int
    """What the account may run."""
    used_vcpus: int | None
    """What it runs now, whoever launched it; None where the instances could not be counted."""
    read_at: datetime | None = None
    """When the cloud was asked, UTC: an answer may be some minutes old."""

    @property
    def free_vcpus(self) -> int | None:
        """What may be launched beside what runs, never below 0; None where that is unknown."""
        return None if self.used_vcpus is None else max(0, self.limit_vcpus - self.used_vcpus)

    def since(self, *, live: bool) -> str:
        """` (asked 2026-11-21 12:00 UTC)` for an answer that a plan made offline remembers; empty otherwise."""
        return "" if live or self.read_at is None else f" (asked {self.read_at:%Y-%m-%d %H:%M} UTC)"
