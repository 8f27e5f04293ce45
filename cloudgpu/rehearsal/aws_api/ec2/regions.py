"""DescribeRegions: the enabled regions of the account's partition, or all of them on request."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
_OPT_IN_LATELY = frozenset({"af-south-1", "ap-southeast-3", "eu-south-1"})
"""Moto treats these as enabled in every account; on AWS they must be enabled first."""


@rule("DescribeRegions")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Return region names with their endpoints; an unknown name is an error."""
    wanted = call.texts("RegionNames")
    rows = [
        _shown(region) for region in call.backend.describe_regions() if not region.name.startswith(_OTHER_PARTITIONS)
    ]
    missing = sorted(set(wanted) - {row["RegionName"] for row in rows})
    if missing:
        raise AwsError("InvalidParameterValue", f"Invalid region provided: {', '.join(missing)}")
    everyone = call.params.get("AllRegions") or bool(wanted)
    return {
        "Regions": [
            row
            for row in rows
            if (not wanted or row["RegionName"] in wanted) and (everyone or row["OptInStatus"] != "not-opted-in")
        ]
    }


def _shown(region: Any) -> dict[str, str]:  # noqa: ANN401 - moto is untyped
    status = "not-opted-in" if region.name in _OPT_IN_LATELY else region.opt_in_status
    return {"RegionName": region.name, "Endpoint": region.endpoint, "OptInStatus": status}
