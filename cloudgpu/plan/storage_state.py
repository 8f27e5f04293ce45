"""Storage that exists, as the cloud describes it."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class StorageSeen:
    """Existing storage.

    Attributes:
        zone: Zone, for kinds that belong to one; empty for others or if unknown.
        ready: Whether it can be mounted.
        users: Instances that it is attached to; None if unknown.
        monthly_usd: Price per month; None if unknown.
    """

    name: str
    kind: str
    region: str
    zone: str
    ready: bool
    owner: str
    users: tuple[str, ...] | None
    monthly_usd: Decimal | None

    @property
    def place(self) -> str:
        """Its zone, or its region if it belongs to no zone."""
        return self.zone or self.region
