"""DescribeSpotPriceHistory from the catalog's range of prices, or as set by the user."""

from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cloudgpu.catalog import catalog
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.rules import ParsedRequest, page, rule

if TYPE_CHECKING:
    from cloudgpu.rehearsal.aws_api.interfaces import World

_PRODUCT = "Linux/UNIX"
_SIX_PLACES = Decimal("0.000001")


@rule("DescribeSpotPriceHistory")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Return the price history. Types without a known spot price have no rows, like types not sold as spot on AWS."""
    filters = call.filters()
    wanted = {
        "InstanceType": set(call.texts("InstanceTypes") or filters.get("instance-type", [])),
        "AvailabilityZone": set(filters.get("availability-zone", [])),
        "ProductDescription": set(call.texts("ProductDescriptions") or filters.get("product-description", [])),
    }
    if call.params.get("AvailabilityZone"):
        wanted["AvailabilityZone"] = {str(call.params["AvailabilityZone"])}
    rows = [
        row
        for row in _rows(call.world, call.region)
        if all(not some or row[key] in some for key, some in wanted.items())
    ]
    shown, token = page(rows, call.params)
    return {"SpotPriceHistory": shown, "NextToken": token or ""}


def _rows(world: "World", region: str) -> Iterator[dict[str, Any]]:
    offered = instance_types.zones_by_type(region)
    for kind in catalog.load().types.values():
        zones = offered.get(kind.name, ())
        for zone, usd in zip(zones, _prices(world, kind, region, len(zones)), strict=False):
            yield {
                "AvailabilityZone": zone,
                "InstanceType": kind.name,
                "ProductDescription": _PRODUCT,
                "SpotPrice": str(usd),
                "Timestamp": datetime.combine(kind.priced_on, time(), UTC),
            }


def _prices(world: "World", kind: InstanceType, region: str, zones: int) -> list[Decimal]:
    """Spread prices evenly from lowest to highest, or use the set price; empty if none is known."""
    fixed = world.market.price_of(region, kind.name, "spot")
    if fixed is not None:
        return [fixed.quantize(_SIX_PLACES)] * zones
    if region not in kind.spot_usd:
        return []
    low, high = kind.spot_usd[region]
    step = (high - low) / max(zones - 1, 1)
    return [(low + step * number).quantize(_SIX_PLACES) for number in range(zones)]
