"""Read instance prices: on-demand prices from the price list, spot prices from the price history of the last day."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError
from cloudgpu.workers import Workers

_LINUX: Final[Mapping[str, str]] = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
"""Product attributes in the price list that select plain Linux instances billed by the hour."""
_PAGE: Final = 100
_AT_ONCE: Final = 8
_SPOT_PRODUCT: Final = "Linux/UNIX"
_SPOT_WINDOW: Final = timedelta(days=1)


def on_demand(clients: Clients) -> dict[str, Decimal]:
    """Return the on-demand price in USD per hour of every instance type in the region."""
    return _listed(clients, {**_LINUX, "regionCode": clients.region})


def on_demand_or_error(
    clients_for: Callable[[str], Clients], pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Decimal | str]:
    """Return the on-demand price in USD per hour of each (instance type, region) pair.

    A pair that the price list does not contain is omitted. If a request fails, the pair maps to the error message.
    """

    def price(pair: tuple[str, str]) -> Decimal | str | None:
        name, region = pair
        try:
            listed = _listed(clients_for(region), {**_LINUX, "regionCode": region, "instanceType": name})
        except CloudGpuError as err:
            return err.message
        return listed.get(name)

    with Workers(_AT_ONCE) as workers:
        found = dict(zip(pairs, workers.map(price, pairs), strict=True))
    return {pair: usd for pair, usd in found.items() if usd is not None}


def _listed(clients: Clients, attributes: Mapping[str, str]) -> dict[str, Decimal]:
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in attributes.items()]
    with convert_response_errors(f"reading the price list of {clients.region}"):
        paginator = clients.client("pricing").get_paginator("get_products")
        pages = paginator.paginate(ServiceCode="AmazonEC2", Filters=filters, PaginationConfig={"PageSize": _PAGE})
        return dict(sorted(_priced(product for page in pages for product in page["PriceList"])))


def spot(clients: Clients, types: Sequence[str], now: datetime) -> dict[str, tuple[Decimal, Decimal]]:
    """Return the lowest and highest spot price of each type in USD per hour, over the last day and all zones.

    Types without a valid price are omitted.
    """
    if not types:
        return {}
    with convert_response_errors(f"reading the spot prices of {clients.region}"):
        paginator = clients.client("ec2").get_paginator("describe_spot_price_history")
        pages = paginator.paginate(
            InstanceTypes=list(types), ProductDescriptions=[_SPOT_PRODUCT], StartTime=now - _SPOT_WINDOW
        )
        prices_by_type: dict[str, list[Decimal]] = {}
        for page in pages:
            for row in page["SpotPriceHistory"]:
                with contextlib.suppress(ValueError):  # skip invalid prices
                    prices_by_type.setdefault(row["InstanceType"], []).append(
                        strip_trailing_zeros(bounds.positive_usd(row["SpotPrice"]))
                    )
    return {name: (min(prices), max(prices)) for name, prices in sorted(prices_by_type.items()) if prices}


def _priced(products: Iterator[str]) -> Iterator[tuple[str, Decimal]]:
    """Yield each instance type with its hourly price, skipping products without a price, such as unreleased types."""
    for text in products:
        product = json.loads(text)
        usd = [price for price in _hourly(product.get("terms", {}).get("OnDemand", {})) if price > 0]
        if usd:
            yield str(product["product"]["attributes"]["instanceType"]), strip_trailing_zeros(usd[0])


def _hourly(terms: Mapping[str, Any]) -> Iterator[Decimal]:
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs" and "USD" in dimension["pricePerUnit"]:
                with contextlib.suppress(ValueError):  # skip invalid prices
                    yield bounds.usd(dimension["pricePerUnit"]["USD"])


def strip_trailing_zeros(value: Decimal) -> Decimal:
    """Strip trailing zeros: `31.2120000000` becomes `31.212`, and `30.0` becomes `30` rather than `3E+1`."""
    whole = value.to_integral_value()
    return whole.quantize(Decimal(1)) if value == whole else value.normalize()
