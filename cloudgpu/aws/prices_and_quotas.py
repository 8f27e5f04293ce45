"""Read instance prices from the price list and the spot price history, and the account's vCPU quotas in a region."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.catalog import load
from cloudgpu.catalog.prices_and_quotas import Quota, quota_of
from cloudgpu.cloud import QuotaLimit
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
_GPU_QUOTAS = (("g5", "on-demand"), ("p4d", "on-demand"), ("g5", "spot"), ("p4d", "spot"), ("p5", "spot"))
"""One instance family and market for each quota that applies to GPU instances."""
_WITHOUT_CODE: Final = quota_of("p6", "spot")
"""Quota whose code is unknown. It is recognized by the end of its name."""
_MAX_CORES: Final = 1 << 20
_RUNNING: Final = ("pending", "running")
"""States in which an instance counts against a quota."""
_UNCOUNTED: Final = frozenset({"capacity-block", "scheduled"})
"""Lifecycles of instances that do not count against these quotas. AWS does not document this for Capacity Blocks."""


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


def gpu_quotas(clients: Clients) -> tuple[QuotaLimit, ...]:
    """Return the quotas that apply to GPU instances."""
    vcpus_by_key = vcpu_limits(clients)
    quotas = [quota_of(family, market) for family, market in _GPU_QUOTAS]
    return tuple(QuotaLimit(quota, clients.region, vcpus_by_key.get(quota.code)) for quota in quotas)


def vcpu_limits(clients: Clients) -> dict[str, int]:
    """Return the vCPU limit of every EC2 quota on running instances, by quota key.

    The key is the quota code. The quota for P6 spot instances is also listed under its name, because public sources
    disagree about its code. AWS may list a quota that was never changed only among the default values, so the default
    values are also read if a GPU quota is missing.
    """
    listed = _list_quotas(clients, "list_service_quotas")
    if not {quota_of(family, market).code for family, market in _GPU_QUOTAS} <= listed.keys():
        listed = {**_list_quotas(clients, "list_aws_default_service_quotas"), **listed}
    by_key = {code: vcpus for code, (name, vcpus) in sorted(listed.items()) if _is_of_running(name)}
    for name, vcpus in listed.values():
        if name.endswith(_WITHOUT_CODE.name):
            by_key[_WITHOUT_CODE.key] = vcpus
    return by_key


def catalog_vcpus(instance_type: str) -> int | None:
    """Return a type's vCPU count from the bundled catalog, or None if the catalog does not list the type."""
    entry = load().types.get(instance_type)
    return None if entry is None else entry.vcpus


def vcpus_in_use(clients: Clients, vcpus_of: Callable[[str], int | None] = catalog_vcpus) -> dict[Quota, int | None]:
    """Return the number of vCPUs in use for each quota, regardless of who launched the instances.

    Quotas without running instances are omitted. If AWS does not report an instance's vCPU count, `vcpus_of` is called
    with the instance type. A quota maps to None if the count is unknown for any of its instances.
    """
    used: dict[Quota, int | None] = {}
    with convert_response_errors(f"counting the running instances in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_instances")
        filters = [{"Name": "instance-state-name", "Values": list(_RUNNING)}]
        for instance in _instances(pages.paginate(Filters=filters)):
            lifecycle = instance.get("InstanceLifecycle") or "on-demand"
            if lifecycle not in _UNCOUNTED:
                quota, vcpus = quota_of(instance["InstanceType"], lifecycle), _vcpus(instance, vcpus_of)
                before = used.get(quota, 0)
                used[quota] = None if before is None or vcpus is None else before + vcpus
    return used


def _list_quotas(clients: Clients, operation: str) -> dict[str, tuple[str, int]]:
    """Return the name and value of each quota, by code."""
    listed = {}
    with convert_response_errors(f"reading the quotas of {clients.region}"):
        for page in clients.client("service-quotas").get_paginator(operation).paginate(ServiceCode="ec2"):
            for row in page["Quotas"]:
                with contextlib.suppress(ValueError):  # skip limits that are not numbers or are negative
                    listed[str(row["QuotaCode"])] = (
                        str(row["QuotaName"]),
                        bounds.checked_count(int(bounds.parse_decimal(row["Value"]))),
                    )
    return listed


def _is_of_running(name: str) -> bool:
    return name.startswith("Running On-Demand ") or name.endswith("Spot Instance Requests")


def _instances(pages: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    for page in pages:
        for reservation in page["Reservations"]:
            yield from reservation["Instances"]


def _vcpus(instance: Mapping[str, Any], vcpus_of: Callable[[str], int | None]) -> int | None:
    """Return the vCPU count that AWS reports for an instance, or else the count of the instance type; None if unknown.

    The reported count may be lower than the count of the type, because CPU options can disable cores and threads.
    """
    options = instance.get("CpuOptions") or {}
    with contextlib.suppress(ValueError):  # ignore implausible core counts
        cores, threads = (
            bounds.checked_count(options.get(name), 1, _MAX_CORES) for name in ("CoreCount", "ThreadsPerCore")
        )
        return cores * threads
    return vcpus_of(instance["InstanceType"])
