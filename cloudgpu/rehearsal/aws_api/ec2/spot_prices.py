"""DescribeSpotPriceHistory, based on the catalog's price ranges or on prices that the user set."""

from collections.abc import Iterator
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cloudgpu.catalog import catalog
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.rehearsal.aws_api.dispatch import ParsedRequest, paginate_rows, rule
from cloudgpu.rehearsal.aws_api.ec2 import instance_types

if TYPE_CHECKING:
    from cloudgpu.rehearsal.aws_api.interfaces import World

_PRODUCT = "Linux/UNIX"
_SIX_PLACES = Decimal("0.000001")


@rule("DescribeSpotPriceHistory")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Return the price history. A type without a known spot price has no rows, as on AWS."""
    filters = call.filters()
    selected = {
        "InstanceType": set(call.texts("InstanceTypes") or filters.get("instance-type", [])),
        "AvailabilityZone": set(filters.get("availability-zone", [])),
        "ProductDescription": set(call.texts("ProductDescriptions") or filters.get("product-description", [])),
    }
    if call.params.get("AvailabilityZone"):
        selected["AvailabilityZone"] = {str(call.params["AvailabilityZone"])}
    rows = [
        row
        for row in _rows(call.world, call.region)
        if all(not accepted or row[key] in accepted for key, accepted in selected.items())
    ]
    page_rows, token = paginate_rows(rows, call.params)
    return {"SpotPriceHistory": page_rows, "NextToken": token or ""}


def _rows(world: "World", region: str) -> Iterator[dict[str, Any]]:
    offered = instance_types.zones_by_type(region)
    for instance_type in catalog.load().types.values():
        zones = offered.get(instance_type.name, ())
        for zone, usd in zip(zones, _prices(world, instance_type, region, len(zones)), strict=False):
            yield {
                "AvailabilityZone": zone,
                "InstanceType": instance_type.name,
                "ProductDescription": _PRODUCT,
                "SpotPrice": str(usd),
                "Timestamp": datetime.combine(instance_type.priced_on, time(), UTC),
            }


def _prices(world: "World", instance_type: InstanceType, region: str, zones: int) -> list[Decimal]:
    """Return one price per zone: the price that the user set, or prices spread evenly over the catalog's range.

    The list is empty if no price is known.
    """
    fixed = world.market.price_of(region, instance_type.name, "spot")
    if fixed is not None:
        return [fixed.quantize(_SIX_PLACES)] * zones
    if region not in instance_type.spot_usd:
        return []
    low, high = instance_type.spot_usd[region]
    step = (high - low) / max(zones - 1, 1)
    return [(low + step * number).quantize(_SIX_PLACES) for number in range(zones)]
