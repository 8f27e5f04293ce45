"""What moto does not know about a region. Kept on moto's own back end object, so that one snapshot holds both."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cloudgpu.rehearsal.nodes.values import Opened

_ATTRIBUTE = "rehearsal_records"


_OPEN = Opened(ssh=True, egress=True)


@dataclass
class PlacementGroup:
    """A placement group; moto has none."""

    id: str
    name: str
    strategy: str
    tags: dict[str, str]
    partitions: int = 0
    spread_level: str = ""


@dataclass
class FleetRecord:
    """An instant fleet with what it launched and what went wrong, in the API's own terms."""

    id: str
    request: dict[str, Any]
    created: datetime
    tags: dict[str, str]
    instances: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    deleted: bool = False

    def instance_ids(self) -> list[str]:
        """Every instance it launched, ended ones too."""
        return [instance_id for row in self.instances for instance_id in row["InstanceIds"]]


@dataclass
class NodeRecord:
    """The simulated machine behind an instance."""

    instance_id: str
    user: str
    user_data: bytes
    authorized_keys: tuple[str, ...]
    efa_interfaces: int
    role: str = ""
    placement_group: str = ""
    fleet_id: str = ""
    reservation: str = ""
    """Capacity reservation that the instance runs in."""
    address: str = ""
    port: int = 0
    host_key: str = ""
    original_address: str = ""
    """The address moto gave; it goes back to the subnet with the instance."""
    ended: datetime | None = None
    opened: Opened = _OPEN
    """What the node was told: who reaches it, what it reaches and may mount."""
    lingers: int | None = None
    """So often it is still described as shutting-down; None before its end began."""


@dataclass
class CapacityReservation:
    """Capacity that is kept for its owner, by the hour or bought for a time; moto has none. Times are UTC."""

    id: str
    kind: str
    instance_type: str
    zone: str
    count: int
    created: datetime
    starts: datetime
    ends: datetime | None = None
    cancelled: bool = False


@dataclass
class SavedAnswer:
    """What a call with a client token was answered, and a digest of its parameters."""

    digest: str
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Records:
    """Everything of one region that only the strict layer knows."""

    placement_groups: dict[str, PlacementGroup] = field(default_factory=dict)
    fleets: dict[str, FleetRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    answers: dict[tuple[str, str, str], SavedAnswer] = field(default_factory=dict)
    reservations: dict[str, CapacityReservation] = field(default_factory=dict)
    offerings: dict[str, CapacityReservation] = field(default_factory=dict)


def records_of(backend: Any) -> Records:  # noqa: ANN401 - moto is untyped
    """The records of the region that this EC2 back end serves."""
    found = backend.__dict__.get(_ATTRIBUTE)
    if not isinstance(found, Records):
        found = Records()
        backend.__dict__[_ATTRIBUTE] = found
    return found
