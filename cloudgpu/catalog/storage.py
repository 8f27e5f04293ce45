"""Monthly prices of storage kinds, read from a data file."""

import json
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.recipe.storage_kinds import StorageKind


@dataclass(frozen=True)
class StoragePrice:
    """A monthly storage price and its source."""

    usd_per_gib_month: Decimal
    source: str
    as_of: date

    def monthly_usd(self, size_gib: Decimal) -> Decimal:
        """Return the price in USD per month of storage of this size."""
        return self.usd_per_gib_month * size_gib


def storage_price(kind: StorageKind, region: str, deployment: str = "") -> StoragePrice | None:
    """Return the price of a storage kind in a region, or None if unknown. `deployment` applies only to Lustre."""
    if kind == "ebs":
        gp3 = other_price("gp3_gib_month_usd", region)
        return None if gp3 is None else StoragePrice(gp3.usd, gp3.source, gp3.priced_on)
    product = _stored()["products"].get(f"{kind} {deployment}" if kind == "lustre" else kind)
    price = None if product is None else product["usd_per_gib_month"].get(region)
    if price is None:
        return None
    return StoragePrice(Decimal(price), product["source"], date.fromisoformat(product["as_of"]))


@cache
def _stored() -> Any:  # noqa: ANN401 - a data file of this package
    return json.loads((files("cloudgpu.catalog") / "data" / "storage_prices.json").read_text(encoding="utf-8"))
