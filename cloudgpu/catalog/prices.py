"""Prices of storage, disks, addresses, NAT gateways and traffic, read from data files."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from typing import Literal

from cloudgpu.catalog.catalog import read_data_file
from cloudgpu.recipe.sources import StorageKind

ItemKind = Literal["nodes", "disks", "addresses", "gateway", "transfer", "storage"]
"""Category of a cost item in a plan or bill."""
PriceKey = Literal[
    "gp3_gib_month_usd",
    "snapshot_gib_month_usd",
    "public_ipv4_hour_usd",
    "nat_gateway_hour_usd",
    "nat_gateway_gb_usd",
    "transfer_gb_usd",
]
"""Price keys. Each price is in USD: per GiB-month of gp3 volumes and of snapshots, per hour of a public IPv4 address
and of a NAT gateway, per GB that a NAT gateway processes, and per GB transferred to another region."""

HOURS_PER_MONTH = 720
"""Hours in an EBS billing month of 30 days."""
_read = cache(read_data_file)


@dataclass(frozen=True)
class Price:
    """A price and its source."""

    usd: Decimal
    source: str
    priced_on: date
    region: str


def other_price(key: PriceKey, region: str) -> Price | None:
    """Return the price of a resource in a region, or None if unknown."""
    stored = _read("other_prices.json")
    price = stored[key]
    text = price if isinstance(price, str) else price.get(region)
    if text is None:
        return None
    return Price(Decimal(text), stored["sources"][key], date.fromisoformat(stored["priced_on"]), region)


def shipped_price(key: PriceKey, region: str) -> Price:
    """Return the price of a resource in a region, for prices that the bundled data always contains."""
    price = other_price(key, region)
    if price is None:
        message = f"the bundled price list does not contain {key} for {region}"
        raise LookupError(message)
    return price


def storage_price(kind: StorageKind, region: str, deployment: str = "") -> Price | None:
    """Return the price of a storage kind in a region, in USD per GiB and month, or None if unknown.

    `deployment` applies only to Lustre.
    """
    if kind == "ebs":
        return other_price("gp3_gib_month_usd", region)
    product = _read("storage_prices.json")["products"].get(f"{kind} {deployment}" if kind == "lustre" else kind)
    price = None if product is None else product["usd_per_gib_month"].get(region)
    if price is None:
        return None
    return Price(Decimal(price), product["source"], date.fromisoformat(product["as_of"]), region)
