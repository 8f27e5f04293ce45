"""Instance types: their availability per region and zone, quota families and hardware."""

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, paginate_rows, rule

RETIRED = ("p2.", "p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "g2.", "g3.", "g3s.", "cg1.")
_OFFERING_FILTERS = {"instance-type": "InstanceType", "location": "Location"}
_SMALLEST_PAGE, _LARGEST_PAGE = 5, 100
_QUOTA_FAMILIES = {"trn": "trn", "inf": "inf", "vt": "g", "dl": "dl", "p": "p", "g": "g", "f": "f", "x": "x", "u": "u"}


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


@rule("DescribeInstanceTypes")
def describe(call: ParsedRequest) -> dict[str, Any]:
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


@rule("DescribeInstanceTypeOfferings")
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
