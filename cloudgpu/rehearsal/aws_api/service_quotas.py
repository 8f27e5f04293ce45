"""EC2 service quotas: vCPU limits per quota family and market, and the default Elastic IP limit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudgpu.rehearsal.aws_api.dispatch import Action, JsonError, paginate
from cloudgpu.rehearsal.aws_api.ec2.capacity_tables import Market
from cloudgpu.rehearsal.aws_api.interfaces import World

DEFAULT_VCPUS = 100_000
"""Limit if no row of the quota table matches: too high to reach, but finite, because AWS always reports a number."""
ELASTIC_IPS = 5
_ACCOUNT = "123456789012"


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


def _services(_: World, __: str, ___: Mapping[str, Any]) -> dict[str, Any]:
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


ACTIONS: Mapping[str, Action] = {
    "GetServiceQuota": _get,
    "GetAWSDefaultServiceQuota": _get_default,
    "ListServiceQuotas": _list,
    "ListAWSDefaultServiceQuotas": _list_defaults,
    "ListServices": _services,
}
