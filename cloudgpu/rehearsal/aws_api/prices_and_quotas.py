"""The Price List API, DescribeSpotPriceHistory and Service Quotas, from the catalog or from what the user set."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time
from decimal import Decimal
from typing import Any

from cloudgpu.catalog import catalog
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.rehearsal.aws_api.dispatch import Action, JsonError, ParsedRequest, Rules, paginate, paginate_rows
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.market import Market

RULES = Rules()
_SERVICE = "AmazonEC2"
_SERVED_IN = ("us-east-1", "eu-central-1", "ap-south-1")
"""Regions with a price list endpoint on AWS; each endpoint returns the prices of all regions."""
_LARGEST_PAGE = 100
_ATTRIBUTES = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "servicecode": _SERVICE,
    "locationType": "AWS Region",
}
_TYPE, _REGION = "instanceType", "regionCode"
_PRODUCT = "Linux/UNIX"
_SIX_PLACES = Decimal("0.000001")
DEFAULT_VCPUS = 100_000
"""Limit if no row of the quota table matches: too high to reach, but finite, because AWS always reports a number."""
ELASTIC_IPS = 5
_ACCOUNT = "123456789012"


def _products(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    _require_endpoint(region)
    if params.get("ServiceCode") != _SERVICE:
        raise JsonError("NotFoundException", "The rehearsal cloud has prices for AmazonEC2 only.")
    filters = _filters(params)
    type_and_region = {field: value for field, value in filters.items() if field in (_TYPE, _REGION)}
    matches = [row for row in _rows(world, type_and_region) if filters.items() <= row["product"]["attributes"].items()]
    rows, more = _paged(matches, params)
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(row) for row in rows], **more}


def _services(_: World, region: str, ___: Mapping[str, Any]) -> dict[str, Any]:
    _require_endpoint(region)
    names = sorted({*_ATTRIBUTES, _TYPE, _REGION, "vcpu", "memory", "gpu"})
    return {"FormatVersion": "aws_v1", "Services": [{"ServiceCode": _SERVICE, "AttributeNames": names}]}


def _values(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    _require_endpoint(region)
    name = str(params.get("AttributeName") or "")
    values = sorted({str(row["product"]["attributes"].get(name, "")) for row in _rows(world, {})} - {""})
    rows, more = _paged([{"Value": value} for value in values], params)
    return {"AttributeValues": rows, **more}


def _require_endpoint(region: str) -> None:
    if region not in _SERVED_IN:
        raise JsonError(
            "UnknownEndpoint",
            f"There is no price list endpoint in {region}. AWS has price list endpoints in {', '.join(_SERVED_IN)}.",
        )


def _filters(params: Mapping[str, Any]) -> dict[str, str]:
    rows = params.get("Filters") or []
    unknown = [row["Type"] for row in rows if row.get("Type") != "TERM_MATCH"]
    if unknown:
        raise JsonError(
            "InvalidParameterException", f"The rehearsal cloud supports only TERM_MATCH filters, not {unknown[0]}."
        )
    return {row["Field"]: row["Value"] for row in rows}


def _paged(rows: list[Any], params: Mapping[str, Any]) -> tuple[list[Any], dict[str, str]]:
    size = int(params.get("MaxResults") or _LARGEST_PAGE)
    if not 1 <= size <= _LARGEST_PAGE:
        raise JsonError("InvalidParameterException", f"MaxResults must be from 1 to {_LARGEST_PAGE}, not {size}.")
    try:
        return paginate(rows, params, limit=_LARGEST_PAGE)
    except JsonError as err:
        raise JsonError("InvalidNextTokenException", err.message) from err


def _rows(world: World, type_and_region: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield price rows, including the rows of retired types, which AWS keeps in the price list."""
    for instance_type in catalog.load().types.values():
        if instance_type.provider != "aws" or type_and_region.get(_TYPE, instance_type.name) != instance_type.name:
            continue
        for region in dict.fromkeys((*instance_type.on_demand_usd, *instance_type.zones)):
            fixed = world.market.price_of(region, instance_type.name, "on-demand")
            usd = fixed or instance_type.on_demand_usd.get(region)
            if usd is not None and type_and_region.get(_REGION, region) == region:
                yield _row(instance_type, region, usd)


def _row(instance_type: InstanceType, region: str, usd: Decimal) -> dict[str, Any]:
    sku = f"{instance_type.name}.{region}".upper()
    attributes = {
        **_ATTRIBUTES,
        _TYPE: instance_type.name,
        _REGION: region,
        "vcpu": str(instance_type.vcpus),
        "memory": f"{instance_type.memory_gib} GiB",
        "gpu": str(instance_type.gpus),
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}, "description": "simulated price list"}
    term = {
        "priceDimensions": {f"{sku}.HRS": dimension},
        "effectiveDate": f"{instance_type.price_read_on(region)}T00:00:00Z",
    }
    return {
        "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": attributes},
        "serviceCode": _SERVICE,
        "terms": {"OnDemand": {f"{sku}.TERM": term}},
    }


PRICE_ACTIONS: Mapping[str, Action] = {
    "GetProducts": _products,
    "DescribeServices": _services,
    "GetAttributeValues": _values,
}


@RULES.action("DescribeSpotPriceHistory")
def describe_spot_price_history(call: ParsedRequest) -> dict[str, Any]:
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
        for row in _spot_rows(call.world, call.region)
        if all(not accepted or row[key] in accepted for key, accepted in selected.items())
    ]
    page_rows, token = paginate_rows(rows, call.params)
    return {"SpotPriceHistory": page_rows, "NextToken": token or ""}


def _spot_rows(world: "World", region: str) -> Iterator[dict[str, Any]]:
    offered = instance_types.zones_by_type(region)
    for instance_type in catalog.load().types.values():
        zones = offered.get(instance_type.name, ())
        for zone, usd in zip(zones, _spot_prices(world, instance_type, region, len(zones)), strict=False):
            yield {
                "AvailabilityZone": zone,
                "InstanceType": instance_type.name,
                "ProductDescription": _PRODUCT,
                "SpotPrice": str(usd),
                "Timestamp": datetime.combine(instance_type.priced_on, time(), UTC),
            }


def _spot_prices(world: "World", instance_type: InstanceType, region: str, zones: int) -> list[Decimal]:
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


@dataclass(frozen=True)
class SimulatedQuota:
    """A service quota. Its value is the quota table's limit for its family, or else its `default` if it has one."""

    code: str
    name: str
    bucket: str
    market: str
    default: int = 0


QUOTAS = (
    SimulatedQuota(
        "L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", "standard", "on-demand"
    ),
    SimulatedQuota("L-417A185B", "Running On-Demand P instances", "p", "on-demand"),
    SimulatedQuota("L-DB2E81BA", "Running On-Demand G and VT instances", "g", "on-demand"),
    SimulatedQuota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "standard", "spot"),
    SimulatedQuota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", "p", "spot"),
    SimulatedQuota("L-C4BD4855", "All P5 Spot Instance Requests", "p5", "spot"),
    SimulatedQuota("L-3819A6DF", "All G and VT Spot Instance Requests", "g", "spot"),
    SimulatedQuota("L-0263D0A3", "EC2-VPC Elastic IPs", "elastic-ip", "on-demand", ELASTIC_IPS),
)


def vcpus_allowed(market: Market, region: str, family: str, market_name: str) -> int:
    """Return the vCPU limit of a quota family. The `p` row also limits spot P5 unless the table has a `p5` row."""
    limit = market.quota_of(region, family, market_name)
    if limit is None and family == "p5":
        limit = market.quota_of(region, "p", market_name)
    return DEFAULT_VCPUS if limit is None else limit


def _get(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"Quota": _description(world, region, _requested(params))}


def _get_default(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"Quota": _default_description(world, region, _requested(params))}


def _requested(params: Mapping[str, Any]) -> SimulatedQuota:
    _require_ec2(params)
    code = str(params.get("QuotaCode") or "")
    quota = next((quota for quota in QUOTAS if quota.code == code), None)
    if quota is None:
        raise JsonError("NoSuchResourceException", "The request failed because the specified quota does not exist.")
    return quota


def _list(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    _require_ec2(params)
    rows, more = paginate([_description(world, region, quota) for quota in QUOTAS], params)
    return {"Quotas": rows, **more}


def _list_defaults(world: World, region: str, params: Mapping[str, Any]) -> dict[str, Any]:
    _require_ec2(params)
    rows, more = paginate([_default_description(world, region, quota) for quota in QUOTAS], params)
    return {"Quotas": rows, **more}


def _quota_services(_: World, __: str, ___: Mapping[str, Any]) -> dict[str, Any]:
    return {"Services": [{"ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)"}]}


def _require_ec2(params: Mapping[str, Any]) -> None:
    if params.get("ServiceCode") != "ec2":
        raise JsonError("NoSuchResourceException", "The rehearsal cloud has quotas for the service ec2 only.")


def _description(world: World, region: str, quota: SimulatedQuota) -> dict[str, Any]:
    value = vcpus_allowed(world.market, region, quota.bucket, quota.market)
    if quota.default:
        limit = world.market.quota_of(region, quota.bucket, quota.market)
        value = quota.default if limit is None else limit
    return {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{region}:{_ACCOUNT}:ec2/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }


def _default_description(world: World, region: str, quota: SimulatedQuota) -> dict[str, Any]:
    """Return a quota with AWS's default value; only the default of Elastic IPs differs from the applied value here."""
    row = _description(world, region, quota)
    return {**row, "Value": float(quota.default)} if quota.default else row


QUOTA_ACTIONS: Mapping[str, Action] = {
    "GetServiceQuota": _get,
    "GetAWSDefaultServiceQuota": _get_default,
    "ListServiceQuotas": _list,
    "ListAWSDefaultServiceQuotas": _list_defaults,
    "ListServices": _quota_services,
}
