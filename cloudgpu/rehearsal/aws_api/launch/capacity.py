"""Limits on launches: reserved capacity, quotas, zone capacity and free private addresses."""

from dataclasses import dataclass

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.launch import reservations
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.service_quotas import vcpus_allowed

_LIVE = ("pending", "running", "shutting-down", "stopping")


@dataclass(frozen=True)
class LaunchHeadroom:
    """The number of requested instances that can launch, and the error for all others, or None if all can launch."""

    count: int
    why: AwsError | None


def launchable_count(call: ParsedRequest, request: MergedLaunchRequest, count: int) -> LaunchHeadroom:
    """Return how many of `count` instances can launch. As on AWS, quotas are checked before zone capacity."""
    reserved = reservations.free_capacity(call, request)
    if reserved is not None and reserved.count < count:
        return LaunchHeadroom(reserved.count, reserved.why)
    by_quota = _quota_headroom(call, request)
    if by_quota is not None and by_quota < count:
        return LaunchHeadroom(by_quota, _quota_error(call, request))
    by_market = None if request.reservation else _zone_headroom(call, request)
    if by_market is not None and by_market < count:
        return LaunchHeadroom(by_market, _capacity_error(request))
    by_addresses = _address_headroom(call, request)
    if by_addresses < count:
        return LaunchHeadroom(by_addresses, _address_error(request))
    return LaunchHeadroom(count, None)


def _quota_headroom(call: ParsedRequest, request: MergedLaunchRequest) -> int | None:
    pool = instance_types.market_quota_family(request.instance_type, request.market)
    limit = vcpus_allowed(call.world.market, call.region, pool, request.market)
    vcpus = instance_types.vcpus(request.instance_type)
    if not vcpus:
        return None
    used = sum(
        instance_types.vcpus(instance_type)
        for instance_type, _, market in _running_instances(call)
        if (instance_types.market_quota_family(instance_type, market), market) == (pool, request.market)
    )
    return max(limit - used, 0) // vcpus


def _zone_headroom(call: ParsedRequest, request: MergedLaunchRequest) -> int | None:
    limit = call.world.market.capacity_of(request.zone, request.instance_type, request.market)
    if limit is None:
        return None
    used = sum(1 for row in _running_instances(call) if row == (request.instance_type, request.zone, request.market))
    return max(limit - used, 0)


def _address_headroom(call: ParsedRequest, request: MergedLaunchRequest) -> int:
    """Return the number of instances for which the subnet has free addresses. EFA-only interfaces have none."""
    free = int(call.backend.get_subnet(request.subnet_id).available_ip_address_count)
    limit = call.world.behaviour.now.addresses_in(request.zone)
    addressed = [row for row in request.interfaces if row.get("InterfaceType") != "efa-only"]
    return (free if limit is None else min(free, limit)) // max(len(addressed), 1)


def _running_instances(call: ParsedRequest) -> list[tuple[str, str, str]]:
    return [
        (str(instance.instance_type), str(instance.placement.zone), str(instance.lifecycle or "on-demand"))
        for instance in call.backend.all_instances()
        if instance.state in _LIVE
    ]


def _quota_error(call: ParsedRequest, request: MergedLaunchRequest) -> AwsError:
    if request.market == "spot":
        return AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    pool = instance_types.market_quota_family(request.instance_type, request.market)
    limit = vcpus_allowed(call.world.market, call.region, pool, request.market)
    return AwsError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _address_error(request: MergedLaunchRequest) -> AwsError:
    return AwsError(
        "InsufficientFreeAddressesInSubnet",
        f"The specified subnet {request.subnet_id} does not have enough free addresses to satisfy the request.",
    )


def _capacity_error(request: MergedLaunchRequest) -> AwsError:
    return AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {request.instance_type} capacity in the Availability Zone you requested "
        f"({request.zone}). Our system will be working on provisioning additional capacity.",
        http=500,
    )
