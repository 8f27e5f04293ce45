"""Prices of what a cluster uses besides nodes: disks, addresses, NAT gateways, traffic. Read from a data file."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Literal

ItemKind = Literal["nodes", "disks", "addresses", "gateway", "transfer", "storage"]
"""What an item of a plan or of a bill pays for."""
PricedThing = Literal[
    "gp3_gib_month_usd",
    "snapshot_gib_month_usd",
    "public_ipv4_hour_usd",
    "nat_gateway_hour_usd",
    "nat_gateway_gb_usd",
    "transfer_gb_usd",
]
"""A price by its unit: USD a GiB and month of gp3 or of a snapshot, an hour of an address or gateway, a GB that passes
the gateway, a GB that leaves a region for another one."""

MONTH_H = 720
"""Hours in the month by which EBS bills: thirty days."""


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
    found = stored[thing]
    text = found if isinstance(found, str) else found.get(region)
    if text is None:
        return None
    return Price(Decimal(text), stored["sources"][thing], date.fromisoformat(stored["priced_on"]), region)


def shipped_price(thing: PricedThing, region: str) -> Price:
    """Return the price of a resource that this version is known to have.

    Raises:
        LookupError: There is no such price.
    """
    found = other_price(thing, region)
    if found is None:
        message = f"no {thing} of {region}"
        raise LookupError(message)
    return found


@cache
def _stored() -> Any:  # noqa: ANN401 - a data file of this package
    return json.loads((files("cloudgpu.catalog") / "data" / "other_prices.json").read_text(encoding="utf-8"))
