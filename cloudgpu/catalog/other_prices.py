"""Prices of disks, addresses, NAT gateways and traffic, read from a data file."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Literal

ItemKind = Literal["nodes", "disks", "addresses", "gateway", "transfer", "storage"]
"""Category of a cost item in a plan or bill."""
PricedThing = Literal[
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


@dataclass(frozen=True)
class Price:
    """A price and its source."""

    usd: Decimal
    source: str
    priced_on: date
    region: str


def other_price(thing: PricedThing, region: str) -> Price | None:
    """Return the price of a resource in a region, or None if unknown."""
    stored = _stored()
    price = stored[thing]
    text = price if isinstance(price, str) else price.get(region)
    if text is None:
        return None
    return Price(Decimal(text), stored["sources"][thing], date.fromisoformat(stored["priced_on"]), region)


def shipped_price(thing: PricedThing, region: str) -> Price:
    """Return the price of a resource in a region, for prices that the bundled data always contains."""
    price = other_price(thing, region)
    if price is None:
        message = f"the bundled price list does not contain {thing} for {region}"
        raise LookupError(message)
    return price


@cache
def _stored() -> Any:  # noqa: ANN401 - a data file of this package
    return json.loads((files("cloudgpu.catalog") / "data" / "other_prices.json").read_text(encoding="utf-8"))
