"""What a cluster costs, item by item: its nodes, and what goes with them; each with the source of its price. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from cloudgpu.catalog.other_prices import MONTH_H, ItemKind, Price, other_price
from cloudgpu.decoding import decoded
from cloudgpu.plan.reaching import GATEWAYS, PublicAddress, elastic_ips
from cloudgpu.plan.survey import Survey
from cloudgpu.recipe.schema import Recipe

Per = Literal["hour", "once", "month"]

HOUR_S = 3600
SHORTEST_CHARGE_S = 60
"""AWS charges nodes, disks and addresses for at least this long."""
CENT = Decimal("0.01")
_NANO = Decimal("1e-9")
_GB = 10**9


@dataclass(frozen=True)
class CostItem:
    """One line of what a cluster costs."""

    kind: ItemKind
    count: int
    what: str
    """What there is `count` of, for instance `disks of 200 GiB (gp3)`."""
    usd: Decimal | None
    """All of them together, USD an hour, once or a month; None where no price is known."""
    priced_on: date | None
    """The day the price was read."""
    source: str
    per: Per = "hour"
    whole_hours: bool = False
    """Whether a part of an hour costs as much as the whole."""

    @property
    def label(self) -> str:
        """`2 disks of 200 GiB (gp3)`."""
        return f"{self.count} {self.what}"

    def until_usd(self, seconds: int) -> Decimal | None:
        """What it comes to over so long, USD, exactly; None where no price is known."""
        if self.usd is None or self.per == "month":
            return None
        if self.per == "once":
            return self.usd
        charged_s = -(-seconds // HOUR_S) * HOUR_S if self.whole_hours else max(SHORTEST_CHARGE_S, seconds)
        return self.usd * charged_s / HOUR_S

    def as_json(self) -> dict[str, Any]:
        """Its documented form; money as text."""
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
        """The item that `as_json` made this of.

        Raises:
            ValueError: It has another shape.
        """
        return decoded(cls, stored)


def beside_nodes(nodes: int, disk_gib: int, region: str, way: PublicAddress) -> tuple[CostItem, ...]:
    """What a gang has beside its nodes: disks, addresses, the NAT gateway; those without a known price too."""
    found = [_item("disks", nodes, f"{_s('disk', nodes)} of {disk_gib} GiB (gp3)", _disk(disk_gib, region))]
    addresses = nodes if way == "auto" else elastic_ips(way, nodes)
    if addresses:
        address = other_price("public_ipv4_hour_usd", region)
        kind = "public IPv4 address" if way == "auto" else "Elastic IP"
        found.append(_item("addresses", addresses, kind + ("" if addresses == 1 else _plural(kind)), address))
    if way in GATEWAYS:
        gateway = other_price("nat_gateway_hour_usd", region)
        found.append(_item("gateway", 1, "NAT gateway", gateway, whole_hours=True))
    return tuple(found)


def transfers(recipe: Recipe, survey: Survey, region: str) -> tuple[CostItem, ...]:
    """Datasets that lie in another region, once for every node that fetches them; no line where no region is known."""
    found = []
    for data in recipe.data:
        nodes = data.fetched_by(recipe.resources.nodes)
        seen = survey.datasets.get(data.name)
        if seen is None or seen.region in ("", region):
            continue
        what = f"{'copy' if nodes == 1 else 'copies'} of {data.name} from {seen.region}"
        price = other_price("transfer_gb_usd", seen.region)
        if price is None or seen.size_bytes is None or not seen.whole:
            found.append(CostItem("transfer", nodes, what, None, None, "", per="once"))
            continue
        usd = nodes * price.usd * seen.size_bytes / _GB
        found.append(CostItem("transfer", nodes, what, usd, price.priced_on, price.source, per="once"))
    return tuple(found)


def total_usd(items: Iterable[CostItem], seconds: int) -> Decimal:
    """What the items whose price is known come to over so long, USD, rounded up to the cent.

    Rounded down, a cap could be passed by a plan that exceeds it.
    """
    exact = sum((item.until_usd(seconds) or Decimal(0) for item in items), Decimal(0))
    return exact.quantize(CENT, rounding=ROUND_CEILING)


def hourly_usd(items: Iterable[CostItem]) -> Decimal:
    """What the items whose price is known cost an hour, USD, exactly."""
    return sum((item.usd or Decimal(0) for item in items if item.per == "hour"), Decimal(0))


def unpriced(items: Iterable[CostItem]) -> tuple[str, ...]:
    """What is in no sum, since nobody knows its price; what is paid by the month outlives the cluster and is apart."""
    return tuple(item.label for item in items if item.usd is None and item.per != "month")


def _item(kind: ItemKind, count: int, what: str, each: Price | None, *, whole_hours: bool = False) -> CostItem:
    """`count` things at one price each. A nano-dollar is the ledger's smallest part, and rounds up here as there."""
    if each is None:
        return CostItem(kind, count, what, None, None, "", whole_hours=whole_hours)
    usd = (count * each.usd).quantize(_NANO, rounding=ROUND_CEILING).normalize()
    return CostItem(kind, count, what, usd, each.priced_on, each.source, whole_hours=whole_hours)


def _disk(gib: int, region: str) -> Price | None:
    """One disk of so many GiB, by the hour."""
    month = other_price("gp3_gib_month_usd", region)
    return None if month is None else Price(month.usd * gib / MONTH_H, month.source, month.priced_on, region)


def _s(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"


def _plural(kind: str) -> str:
    return "es" if kind.endswith("address") else "s"
