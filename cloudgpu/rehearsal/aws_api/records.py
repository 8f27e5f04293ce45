"""Records of resources that moto lacks, stored on the region's EC2 backend and saved in its snapshot."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cloudgpu.rehearsal.nodes.values import Opened

_ATTRIBUTE = "rehearsal_records"


_OPEN = Opened(ssh=True, egress=True)


@dataclass
class PlacementGroup:
    """A placement group, which moto does not implement."""

    id: str
    name: str
    strategy: str
    tags: dict[str, str]
    partitions: int = 0
    spread_level: str = ""


@dataclass
class FleetRecord:
    """An instant fleet with its instances and errors, as the API reports them."""

    id: str
    request: dict[str, Any]
    created: datetime
    tags: dict[str, str]
    instances: list[dict[str, Any]]
    errors: list[dict[str, Any]]
    deleted: bool = False

    def instance_ids(self) -> list[str]:
        """Return the IDs of all instances that the fleet launched, including terminated instances."""
        return [instance_id for row in self.instances for instance_id in row["InstanceIds"]]


@dataclass
class NodeRecord:
    """The record of the node that simulates an instance."""

    user: str
    user_data: bytes
    authorized_keys: tuple[str, ...]
    efa_interfaces: int
    role: str = ""
    reservation: str = ""
    """ID of the capacity reservation that the instance uses, or an empty string."""
    address: str = ""
    port: int = 0
    host_key: str = ""
    original_address: str = ""
    """Address that moto assigned; returned to the subnet when the instance terminates."""
    ended: datetime | None = None
    opened: Opened = _OPEN
    """Access last sent to the node: SSH from outside, access to the internet, and storage that it may mount."""
    lingers: int | None = None
    """Number of further describe calls that show the instance as `shutting-down`; None until a caller terminates it."""


@dataclass
class CapacityReservation:
    """An On-Demand Capacity Reservation, a Capacity Block, or the offering of a Capacity Block. Times are in UTC."""

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
    """A saved response to a call with a client token, with a digest of the call's parameters."""

    digest: str
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Records:
    """One region's records of the resources that moto lacks, and the saved responses."""

    placement_groups: dict[str, PlacementGroup] = field(default_factory=dict)
    fleets: dict[str, FleetRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    answers: dict[tuple[str, str, str], SavedAnswer] = field(default_factory=dict)
    reservations: dict[str, CapacityReservation] = field(default_factory=dict)
    offerings: dict[str, CapacityReservation] = field(default_factory=dict)


def records_of(backend: Any) -> Records:  # noqa: ANN401 - moto is untyped
    """Return the records stored on a region's EC2 backend, creating them if necessary."""
    records = backend.__dict__.get(_ATTRIBUTE)
    if not isinstance(records, Records):
        records = Records()
        backend.__dict__[_ATTRIBUTE] = records
    return records
