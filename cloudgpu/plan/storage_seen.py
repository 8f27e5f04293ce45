"""Storage that exists, as the cloud describes it."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class StorageSeen:
    """Storage that stands, as the cloud tells of it.

    Attributes:
        zone: Of a kind that stands in one; empty for the others, or where it is not known.
        ready: Whether it can be mounted.
        users: Instances that have it now; None where nobody can tell.
        monthly_usd: None where it is not known.
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
        """Its zone, or its region."""
        return self.zone or self.region
