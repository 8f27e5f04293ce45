"""Cost items of a cluster: nodes, disks, addresses, NAT gateway, storage and data transfer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any, Literal

from cloudgpu.catalog.prices_and_quotas import HOURS_PER_MONTH, ItemKind, Price, other_price
from cloudgpu.decoding import decode_as
from cloudgpu.plan.named_resources import Lookups
from cloudgpu.plan.network_access import GATEWAYS, PublicAddress, elastic_ips

if TYPE_CHECKING:
    # Importing the recipe schema would slow down commands that only read records.
    from cloudgpu.recipe.schema import Recipe

Per = Literal["hour", "once", "month"]

HOUR_S = 3600
SHORTEST_CHARGE_S = 60
"""Minimum time that AWS bills for nodes, disks and addresses."""
CENT = Decimal("0.01")
_NANO = Decimal("1e-9")
_GB = 10**9


@dataclass(frozen=True)
class CostItem:
    """One cost item of a cluster."""

    kind: ItemKind
    count: int
    what: str
    """Description of what is counted, for example `disks of 200 GiB (gp3)`."""
    usd: Decimal | None
    """Price in USD of all `count` items together, for the period in `per`; None if no price is known."""
    priced_on: date | None
    """Date on which the price was read; None if the price is unknown or comes from the inventory."""
    source: str
    """Source of the price; empty if the price is unknown."""
    per: Per = "hour"
    whole_hours: bool = False
    """Whether every started hour is billed in full."""

    @property
    def label(self) -> str:
        """Count and description, such as `2 disks of 200 GiB (gp3)`."""
        return f"{self.count} {self.what}"

    def until_usd(self, seconds: int) -> Decimal | None:
        """Return the exact cost in USD for this many seconds; None if the price is unknown or monthly."""
        if self.usd is None or self.per == "month":
            return None
        if self.per == "once":
            return self.usd
        charged_s = -(-seconds // HOUR_S) * HOUR_S if self.whole_hours else max(SHORTEST_CHARGE_S, seconds)
        return self.usd * charged_s / HOUR_S

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text."""
        return {
            "kind": self.kind,
            "count": self.count,
            "what": self.what,
            "usd": None if self.usd is None else format(self.usd, "f"),
            "per": self.per,
            "whole_hours": self.whole_hours,
            "priced_on": None if self.priced_on is None else self.priced_on.isoformat(),
            "source": self.source,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CostItem":
        """Create a cost item from its `as_json` form."""
        return decode_as(cls, stored)


def items_besides_nodes(nodes: int, disk_gib: int, region: str, public_address: PublicAddress) -> tuple[CostItem, ...]:
    """Return the disks, addresses and NAT gateway of a cluster, including items without a known price."""
    disks = "disk" if nodes == 1 else "disks"
    items = [_item("disks", nodes, f"{disks} of {disk_gib} GiB (gp3)", _disk_hourly_price(disk_gib, region))]
    addresses = nodes if public_address == "auto" else elastic_ips(public_address, nodes)
    if addresses:
        address_price = other_price("public_ipv4_hour_usd", region)
        name = "public IPv4 address" if public_address == "auto" else "Elastic IP"
        items.append(_item("addresses", addresses, name if addresses == 1 else _plural(name), address_price))
    if public_address in GATEWAYS:
        gateway_price = other_price("nat_gateway_hour_usd", region)
        items.append(_item("gateway", 1, "NAT gateway", gateway_price, whole_hours=True))
    return tuple(items)


def transfer_items(recipe: "Recipe", lookups: Lookups, region: str) -> tuple[CostItem, ...]:
    """Return one item for each dataset in another region, with one copy for every node that downloads the dataset.

    Datasets whose region is unknown have no item.
    """
    items = []
    for data in recipe.data:
        nodes = data.downloading_nodes(recipe.resources.nodes)
        dataset = lookups.datasets.get(data.name)
        if dataset is None or dataset.region in ("", region):
            continue
        what = f"{'copy' if nodes == 1 else 'copies'} of {data.name} from {dataset.region}"
        price = other_price("transfer_gb_usd", dataset.region)
        if price is None or dataset.size_bytes is None or not dataset.whole:
            items.append(CostItem("transfer", nodes, what, None, None, "", per="once"))
            continue
        usd = nodes * price.usd * dataset.size_bytes / _GB
        items.append(CostItem("transfer", nodes, what, usd, price.priced_on, price.source, per="once"))
    return tuple(items)


def total_usd(items: Iterable[CostItem], seconds: int) -> Decimal:
    """Return the total USD cost of the hourly and one-time items with a known price, rounded up to the cent.

    Rounding down could let a plan pass a budget that it exceeds.
    """
    exact = sum((item.until_usd(seconds) or Decimal(0) for item in items), Decimal(0))
    return exact.quantize(CENT, rounding=ROUND_CEILING)


def hourly_usd(items: Iterable[CostItem]) -> Decimal:
    """Return the exact total USD per hour of the hourly items with a known price."""
    return sum((item.usd or Decimal(0) for item in items if item.per == "hour"), Decimal(0))


def unpriced(items: Iterable[CostItem]) -> tuple[str, ...]:
    """Return the labels of the hourly and one-time items without a known price, which totals leave out.

    Items billed per month outlive the cluster and are reported separately.
    """
    return tuple(item.label for item in items if item.usd is None and item.per != "month")


def _item(kind: ItemKind, count: int, what: str, unit_price: Price | None, *, whole_hours: bool = False) -> CostItem:
    """Return an hourly item with its price rounded up to the nano-dollar, the smallest unit of a bill."""
    if unit_price is None:
        return CostItem(kind, count, what, None, None, "", whole_hours=whole_hours)
    usd = (count * unit_price.usd).quantize(_NANO, rounding=ROUND_CEILING).normalize()
    return CostItem(kind, count, what, usd, unit_price.priced_on, unit_price.source, whole_hours=whole_hours)


def _disk_hourly_price(gib: int, region: str) -> Price | None:
    """Return the hourly price of a gp3 disk of this size, or None if unknown."""
    monthly = other_price("gp3_gib_month_usd", region)
    return (
        None
        if monthly is None
        else Price(monthly.usd * gib / HOURS_PER_MONTH, monthly.source, monthly.priced_on, region)
    )


def _plural(name: str) -> str:
    return f"{name}es" if name.endswith("address") else f"{name}s"
