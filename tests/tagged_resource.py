"""A resource as a search for tags finds it."""

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Resource:
    """A resource with the default values of a running on-demand instance, which matter only for instances."""

    kind: str
    id: str
    region: str = "us-east-1"
    tags: dict[str, str] = field(default_factory=dict, hash=False)
    state: str = "running"
    since: datetime | None = None
    instance_type: str = "p3dn.24xlarge"
    market: str = "on-demand"
    public_addresses: int = 0
    volume_type: str = ""
    size_gib: int | None = None
