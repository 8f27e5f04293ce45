"""Existing storage as the cloud describes it."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class StorageSeen:
    """Existing storage in one region.

    Attributes:
        zone: Zone of zonal storage; empty for regional storage or if unknown.
        mount_zones: Zones in which a regional file system can be mounted; empty for other storage or if unknown.
        vpc_id: VPC from which a file system can be mounted; empty for other storage or if unknown.
        ready: Whether the storage exists and is available.
        users: Instances that may use the storage, as `i-0abc (cluster demo)`; None if unknown.
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
    mount_zones: tuple[str, ...] = ()
    vpc_id: str = ""

    def is_in(self, zone: str) -> bool:
        """Return True if nodes in this zone of the region can mount the storage."""
        return self.zone in ("", zone) and (not self.mount_zones or zone in self.mount_zones)

    @property
    def place(self) -> str:
        """The zone, or the region if the storage is regional or its zone is unknown."""
        return self.zone or self.region
