"""What addresses and NAT gateways cost, from the data file of this package."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class NetworkPrices:
    """USD, of one region; the others differ by some per cent."""

    public_ipv4_hour_usd: Decimal
    """A public IPv4 address, USD an hour."""
    nat_gateway_hour_usd: Decimal
    """A NAT gateway, USD an hour."""
    nat_gateway_gb_usd: Decimal
    """What passes it, USD a GB."""
    region: str
    priced_on: date
    source: str


@cache
def network_prices() -> NetworkPrices:
    """The prices that travel with this version of cloudgpu."""
    path = files("cloudgpu.catalog").joinpath("data", "network_prices.json")
    stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    money = {name: Decimal(value) for name, value in stored.items() if name.endswith("_usd")}
    return NetworkPrices(
        **money, region=stored["region"], priced_on=date.fromisoformat(stored["priced_on"]), source=stored["source"]
    )
