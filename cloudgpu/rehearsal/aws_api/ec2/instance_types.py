"""Regions and instance types: availability per region and zone, quota families and hardware."""

from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows

RULES = Rules()
RETIRED = ("p2.", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "g2.", "g3.", "g3s.", "cg1.")
_OFFERING_FILTERS = {"instance-type": "InstanceType", "location": "Location"}
_SMALLEST_PAGE, _LARGEST_PAGE = 5, 100
_QUOTA_FAMILIES = {"trn": "trn", "inf": "inf", "vt": "g", "dl": "dl", "p": "p", "g": "g", "f": "f", "x": "x", "u": "u"}
_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
_OPT_IN_REQUIRED = frozenset({"af-south-1", "ap-southeast-3", "eu-south-1"})
"""Regions that moto treats as enabled in every account; on AWS the account must enable them first."""


@lru_cache(maxsize=64)
def zones_by_type(region: str) -> dict[str, tuple[str, ...]]:
    """Return a mapping from each instance type offered in this region to its zones, without the retired types."""
    table: dict[str, list[str]] = {}
    for row in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, []):
        if not row["InstanceType"].startswith(RETIRED):
            table.setdefault(row["InstanceType"], []).append(row["Location"])
    return {name: tuple(sorted(zones)) for name, zones in table.items()}


def is_retired(call: ParsedRequest, instance_type: str) -> bool:
    """Return True if AWS retired the type or a fault script simulates its retirement."""
    return instance_type.startswith(RETIRED) or call.world.behaviour.now.is_retired(instance_type)


def require_type(call: ParsedRequest, instance_type: str) -> dict[str, Any]:
    """Return moto's description of an instance type that this region offers."""
    if is_retired(call, instance_type):
        raise AwsError(
            "InvalidInstanceType",
            f"The instance type '{instance_type}' has been retired and can no longer be launched.",
        )
    description = INSTANCE_TYPES.get(instance_type)
    if description is None:
        raise AwsError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
    if instance_type not in zones_by_type(call.region):
        raise AwsError("Unsupported", f"The requested configuration is currently not supported: {instance_type}.")
    return dict(description)


def is_nitro(instance_type: str) -> bool:
    """Return True if the instance type uses the Nitro System. Bare metal types have no hypervisor, but use it too."""
    return bool(INSTANCE_TYPES.get(instance_type, {}).get("Hypervisor") != "xen")


def require_zone(region: str, instance_type: str, zone: str) -> None:
    """Reject a zone that does not offer the type."""
    offered = zones_by_type(region).get(instance_type, ())
    if zone not in offered:
        raise AwsError(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by not specifying an Availability Zone or choosing "
            f"{', '.join(offered)}.",
        )


def vcpus(instance_type: str) -> int:
    """Return the number of vCPUs of an instance type, or 0 for an unknown type."""
    return int(INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 0))


def quota_family(instance_type: str) -> str:
    """Return the quota family that a type counts against: `p`, `g`, `standard` or similar."""
    family = instance_type.partition(".")[0]
    letters = family[: next((at for at, letter in enumerate(family) if not letter.isalpha()), len(family))]
    return next((quota for prefix, quota in _QUOTA_FAMILIES.items() if letters.startswith(prefix)), "standard")


def market_quota_family(instance_type: str, market: str) -> str:
    """Return the quota family for a type in a market. Spot P5 and P6 instances share a separate quota, `p5`."""
    family = quota_family(instance_type)
    return "p5" if market == "spot" and instance_type.startswith(("p5", "p6")) else family


def gpus(instance_type: str) -> tuple[str, int, int]:
    """Return a type's GPU name, GPU count and memory per GPU in MiB. Without GPUs, return `("", 0, 0)`."""
    rows = INSTANCE_TYPES.get(instance_type, {}).get("GpuInfo", {}).get("Gpus", [])
    if not rows:
        return "", 0, 0
    return str(rows[0]["Name"]), int(rows[0]["Count"]), int(rows[0].get("MemoryInfo", {}).get("SizeInMiB", 0))


@RULES.action("DescribeInstanceTypes")
def describe_instance_types(call: ParsedRequest) -> dict[str, Any]:
    """Describe the instance types that this region offers, with pagination; reject any other type name."""
    requested, offered = call.texts("InstanceTypes"), zones_by_type(call.region)
    missing = [name for name in requested if name not in offered or is_retired(call, name)]
    if missing:
        raise AwsError(
            "InvalidInstanceType", f"The following supplied instance types do not exist: [{', '.join(missing)}]"
        )
    if requested and call.params.get("MaxResults"):
        raise AwsError(
            "InvalidParameterCombination", "The parameter instanceTypes cannot be used with the parameter maxResults"
        )
    size = int(call.params.get("MaxResults") or _LARGEST_PAGE)
    if not _SMALLEST_PAGE <= size <= _LARGEST_PAGE:
        raise AwsError("InvalidParameterValue", f"Value ( {size} ) for parameter maxResults is invalid.")
    descriptions = call.backend.describe_instance_types(requested, call.filters())
    rows = [row for row in descriptions if row["InstanceType"] in offered and not is_retired(call, row["InstanceType"])]
    page_rows, token = paginate_rows(
        sorted(rows, key=lambda row: str(row["InstanceType"])), call.params, limit=_LARGEST_PAGE
    )
    return {"InstanceTypes": page_rows, "NextToken": token}


@RULES.action("DescribeInstanceTypeOfferings")
def describe_offerings(call: ParsedRequest) -> dict[str, Any]:
    """Describe the instance type offerings of this region, with pagination; filter values may contain `*`."""
    location_type = str(call.params.get("LocationType") or "region")
    filters = call.filters()
    unsupported = sorted(filters.keys() - _OFFERING_FILTERS.keys())
    if unsupported:
        raise AwsError("InvalidParameterValue", f"The filter '{unsupported[0]}' is invalid")
    rows = [
        {**row, "LocationType": location_type}
        for row in INSTANCE_TYPE_OFFERINGS[location_type].get(call.region, [])
        if not is_retired(call, str(row["InstanceType"]))
        and all(_matches_any(str(row[_OFFERING_FILTERS[name]]), values) for name, values in filters.items())
    ]
    page_rows, token = paginate_rows(rows, call.params)
    return {"InstanceTypeOfferings": page_rows, "NextToken": token}


def _matches_any(text: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def disabled_region_error(service: str, region: str) -> tuple[str, str, int] | None:
    """Return the code, message and HTTP status with which a service answers in a region that is not enabled.

    There, AWS does not know the account's credentials: EC2 answers as in turbot/steampipe-plugin-aws issue 75, STS as
    in remotion-dev/github-unwrapped-2022 issue 34, services with JSON as in aws/chalice issue 1445. The answer is None
    for enabled regions, and for S3, whose buckets are reached through any region.
    """
    if service == "s3" or region not in _disabled_regions():
        return None
    if service == "ec2":
        return "AuthFailure", "AWS was not able to validate the provided access credentials", 401
    if service in ("sts", "iam"):
        return "InvalidClientTokenId", "The security token included in the request is invalid.", 403
    return "UnrecognizedClientException", "The security token included in the request is invalid.", 400


@cache
def _disabled_regions() -> frozenset[str]:
    return frozenset(
        region.name
        for region in RegionsAndZonesBackend.regions
        if _region_description(region)["OptInStatus"] == "not-opted-in"
    )


@RULES.action("DescribeRegions")
def describe_regions(call: ParsedRequest) -> dict[str, Any]:
    """Return regions with their endpoints; reject an unknown region name."""
    requested = call.texts("RegionNames")
    rows = [
        _region_description(region)
        for region in call.backend.describe_regions()
        if not region.name.startswith(_OTHER_PARTITIONS)
    ]
    missing = sorted(set(requested) - {row["RegionName"] for row in rows})
    if missing:
        raise AwsError("InvalidParameterValue", f"Invalid region provided: {', '.join(missing)}")
    all_regions = call.params.get("AllRegions") or bool(requested)
    return {
        "Regions": [
            row
            for row in rows
            if (not requested or row["RegionName"] in requested)
            and (all_regions or row["OptInStatus"] != "not-opted-in")
        ]
    }


def _region_description(region: Any) -> dict[str, str]:  # noqa: ANN401 - moto is untyped
    status = "not-opted-in" if region.name in _OPT_IN_REQUIRED else region.opt_in_status
    return {"RegionName": region.name, "Endpoint": region.endpoint, "OptInStatus": status}
