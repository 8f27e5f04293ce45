"""The price list: on-demand prices of the catalogue, in the shape of `GetProducts`."""

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from cloudgpu.catalog import catalog
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.rehearsal.strict.json_service import Action, JsonError, paged
from cloudgpu.rehearsal.world import World

_SERVICE = "AmazonEC2"
_ATTRIBUTES = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
    "servicecode": _SERVICE,
    "locationType": "AWS Region",
}


def _products(_: World, __: str, params: Mapping[str, Any]) -> dict[str, Any]:
    if params.get("ServiceCode") != _SERVICE:
        raise JsonError("NotFoundException", "The rehearsal cloud has prices of AmazonEC2 only.")
    wanted = {row["Field"]: row["Value"] for row in params.get("Filters") or []}
    found = [row for row in _rows() if wanted.items() <= row["product"]["attributes"].items()]
    rows, more = paged(found, params)
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(row) for row in rows], **more}


def _services(_: World, __: str, ___: Mapping[str, Any]) -> dict[str, Any]:
    names = sorted({*_ATTRIBUTES, "instanceType", "regionCode", "vcpu", "memory", "gpu"})
    return {"FormatVersion": "aws_v1", "Services": [{"ServiceCode": _SERVICE, "AttributeNames": names}]}


def _values(_: World, __: str, params: Mapping[str, Any]) -> dict[str, Any]:
    name = str(params.get("AttributeName") or "")
    found = sorted({str(row["product"]["attributes"].get(name, "")) for row in _rows()} - {""})
    rows, more = paged([{"Value": value} for value in found], params)
    return {"AttributeValues": rows, **more}


def _rows() -> Iterator[dict[str, Any]]:
    """Retired types too: the price list of AWS still carries them, so a price is no promise."""
    for kind in catalog.load().types.values():
        for region, usd in kind.on_demand_usd.items():
            yield _row(kind, region, usd)


def _row(kind: InstanceType, region: str, usd: Decimal) -> dict[str, Any]:
    sku = f"{kind.name}.{region}".upper()
    attributes = {
        **_ATTRIBUTES,
        "instanceType": kind.name,
        "regionCode": region,
        "vcpu": str(kind.vcpus),
        "memory": f"{kind.memory_gib} GiB",
        "gpu": str(kind.gpus),
    }
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd:.10f}"}, "description": "simulated price list"}
    term = {"priceDimensions": {f"{sku}.HRS": dimension}, "effectiveDate": f"{kind.priced_on}T00:00:00Z"}
    return {
        "product": {"productFamily": "Compute Instance", "sku": sku, "attributes": attributes},
        "serviceCode": _SERVICE,
        "terms": {"OnDemand": {f"{sku}.TERM": term}},
    }


ACTIONS: Mapping[str, Action] = {
    "GetProducts": _products,
    "DescribeServices": _services,
    "GetAttributeValues": _values,
}
