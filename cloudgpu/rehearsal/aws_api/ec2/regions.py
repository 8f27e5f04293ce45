"""DescribeRegions: the account's enabled regions or, on request, all regions of its partition."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
_OPT_IN_REQUIRED = frozenset({"af-south-1", "ap-southeast-3", "eu-south-1"})
"""Regions that moto treats as enabled in every account; on AWS the account must enable them first."""


@rule("DescribeRegions")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Return regions with their endpoints; reject an unknown region name."""
    requested = call.texts("RegionNames")
    rows = [
        _shown(region) for region in call.backend.describe_regions() if not region.name.startswith(_OTHER_PARTITIONS)
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


def _shown(region: Any) -> dict[str, str]:  # noqa: ANN401 - moto is untyped
    status = "not-opted-in" if region.name in _OPT_IN_REQUIRED else region.opt_in_status
    return {"RegionName": region.name, "Endpoint": region.endpoint, "OptInStatus": status}
