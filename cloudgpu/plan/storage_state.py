"""Existing storage as the cloud describes it."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class StorageSeen:
    """Existing storage.

    Attributes:
        zone: Zone of zonal storage; empty for regional storage or if unknown.
        ready: Whether the storage can be mounted.
        users: Instances to which the storage is attached; None if unknown.
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
        """The zone of zonal storage, or the region of regional storage."""
        return self.zone or self.region
