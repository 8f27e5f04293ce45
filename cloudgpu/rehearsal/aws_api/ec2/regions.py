"""DescribeRegions: the account's enabled regions or, on request, all regions of its partition."""

from functools import cache
from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule

_OTHER_PARTITIONS = ("cn-", "us-gov-", "us-iso", "eu-isoe-", "eusc-")
_OPT_IN_REQUIRED = frozenset({"af-south-1", "ap-southeast-3", "eu-south-1"})
"""Regions that moto treats as enabled in every account; on AWS the account must enable them first."""


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
        region.name for region in RegionsAndZonesBackend.regions if _shown(region)["OptInStatus"] == "not-opted-in"
    )


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
