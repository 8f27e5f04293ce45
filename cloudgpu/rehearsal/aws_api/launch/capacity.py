"""Limit launches by capacity, quotas and free addresses."""

from dataclasses import dataclass

from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.launch import reservations
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest
from cloudgpu.rehearsal.aws_api.service_quotas import vcpus_allowed

_LIVE = ("pending", "running", "shutting-down", "stopping")


@dataclass(frozen=True)
class Room:
    """Number of requested instances that fit (`count`), and the error for the others (`why`)."""

    count: int
    why: AwsError | None


def room_for(call: ParsedRequest, wanted: MergedLaunchRequest, count: int) -> Room:
    """Return how many of `count` instances fit. Quotas come first, as on AWS."""
    held = reservations.room(call, wanted)
    if held is not None and held.count < count:
        return Room(held.count, held.why)
    by_quota = _quota_room(call, wanted)
    if by_quota is not None and by_quota < count:
        return Room(by_quota, _quota_error(call, wanted))
    by_market = None if wanted.reservation else _market_room(call, wanted)
    if by_market is not None and by_market < count:
        return Room(by_market, _capacity_error(wanted))
    by_addresses = _address_room(call, wanted)
    if by_addresses < count:
        return Room(by_addresses, _address_error(wanted))
    return Room(count, None)


def _quota_room(call: ParsedRequest, wanted: MergedLaunchRequest) -> int | None:
    pool = instance_types.pool(wanted.instance_type, wanted.market)
    limit = vcpus_allowed(call.world.market, call.region, pool, wanted.market)
    size = instance_types.vcpus(wanted.instance_type)
    if not size:
        return None
    used = sum(
        instance_types.vcpus(kind)
        for kind, _, market in _living(call)
        if (instance_types.pool(kind, market), market) == (pool, wanted.market)
    )
    return max(limit - used, 0) // size


def _market_room(call: ParsedRequest, wanted: MergedLaunchRequest) -> int | None:
    limit = call.world.market.capacity_of(wanted.zone, wanted.instance_type, wanted.market)
    if limit is None:
        return None
    used = sum(1 for row in _living(call) if row == (wanted.instance_type, wanted.zone, wanted.market))
    return max(limit - used, 0)


def _address_room(call: ParsedRequest, wanted: MergedLaunchRequest) -> int:
    """Return the number of instances for which the subnet has private addresses, one per interface."""
    free = int(call.backend.get_subnet(wanted.subnet_id).available_ip_address_count)
    limit = call.world.behaviour.now.addresses_in(wanted.zone)
    return (free if limit is None else min(free, limit)) // max(len(wanted.interfaces), 1)


def _living(call: ParsedRequest) -> list[tuple[str, str, str]]:
    return [
        (str(instance.instance_type), str(instance.placement.zone), str(instance.lifecycle or "on-demand"))
        for instance in call.backend.all_instances()
        if instance.state in _LIVE
    ]


def _quota_error(call: ParsedRequest, wanted: MergedLaunchRequest) -> AwsError:
    if wanted.market == "spot":
        return AwsError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    pool = instance_types.pool(wanted.instance_type, wanted.market)
    limit = vcpus_allowed(call.world.market, call.region, pool, wanted.market)
    return AwsError(
        "VcpuLimitExceeded",
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance "
        "bucket that the specified instance type belongs to. Please visit "
        "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
    )


def _address_error(wanted: MergedLaunchRequest) -> AwsError:
    return AwsError(
        "InsufficientFreeAddressesInSubnet",
        f"The specified subnet {wanted.subnet_id} does not have enough free addresses to satisfy the request.",
    )


def _capacity_error(wanted: MergedLaunchRequest) -> AwsError:
    return AwsError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {wanted.instance_type} capacity in the Availability Zone you requested "
        f"({wanted.zone}). Our system will be working on provisioning additional capacity.",
        http=500,
    )
