"""A candidate for the launch: an instance type in one zone and market, with its costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

from cloudgpu.decoding import decode_as
from cloudgpu.plan.costs import CostItem
from cloudgpu.plan.network_access import PublicAddress

Market = Literal["on-demand", "spot", "reservation", "capacity-block"]


@dataclass(frozen=True)
class Candidate:
    """A launch candidate: a combination of instance type, region, zone and market that can run the recipe."""

    instance_type: str
    region: str
    zone: str
    market: Market
    node_hourly_usd: Decimal
    """Price of one node in USD per hour."""
    priced_on: date
    """Date on which the price was read."""
    gpu: str
    gpus_per_node: int
    gpu_memory_gib: Decimal
    efa_interfaces: int
    """Number of EFA interfaces to attach; 0 means plain TCP."""
    image: str
    """Machine image: `ami-...`, or the name of its SSM parameter in an offline plan."""
    image_parameter: str = ""
    """SSM parameter from which `image` was read; empty if the recipe sets an image ID."""
    public_address: PublicAddress = "auto"
    """Kind of public address that the nodes get."""
    reservation: str = ""
    """ID of the capacity reservation to launch the nodes into; empty if there is none."""
    subnet: str = ""
    """ID of the subnet to launch the nodes into; empty if it is unknown or created with the cluster."""
    subnet_why: str = ""
    """Why this subnet was chosen: its kind and its default route."""
    beside: tuple[CostItem, ...] = ()
    """Costs other than the nodes: disks, addresses, NAT gateway, storage and data transfer."""
    source: str = ""
    """Source of the node price."""

    @property
    def label(self) -> str:
        """Name for messages, such as `us-east-1c p3dn.24xlarge on-demand`."""
        return f"{self.zone} {self.instance_type} {self.market}"

    @property
    def key(self) -> tuple[str, str, Market]:
        """Unique key within a plan."""
        return self.instance_type, self.zone, self.market

    def costs(self, nodes: int) -> tuple[CostItem, ...]:
        """Return all cost items of a cluster with this many nodes. The item for the nodes comes first."""
        what = f"{'node' if nodes == 1 else 'nodes'} {self.instance_type}"
        return (
            CostItem("nodes", nodes, what, nodes * self.node_hourly_usd, self.priced_on, self.source),
            *self.beside,
        )

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text."""
        return {
            "instance_type": self.instance_type,
            "region": self.region,
            "zone": self.zone,
            "market": self.market,
            "node_hourly_usd": str(self.node_hourly_usd),
            "priced_on": self.priced_on.isoformat(),
            "price_source": self.source,
            "gpu": self.gpu,
            "gpus_per_node": self.gpus_per_node,
            "gpu_memory_gib": str(self.gpu_memory_gib),
            "efa_interfaces": self.efa_interfaces,
            "image": self.image,
            "image_parameter": self.image_parameter,
            "public_address": self.public_address,
            "reservation": self.reservation or None,
            "subnet": self.subnet or None,
            "subnet_why": self.subnet_why or None,
            "beside": [item.as_json() for item in self.beside],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Candidate":
        """Create a candidate from its `as_json` form."""
        fields = {**stored, "source": stored["price_source"], "reservation": stored["reservation"] or ""}
        # A plan of an earlier version names no subnet.
        fields |= {name: stored.get(name) or "" for name in ("subnet", "subnet_why")}
        return decode_as(cls, fields)
