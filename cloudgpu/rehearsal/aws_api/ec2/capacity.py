"""Capacity: reservations and Capacity Blocks, and the limits of launches by quota, zone and private addresses."""

import re
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows, tag_list
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.prices_and_quotas import vcpus_allowed
from cloudgpu.rehearsal.aws_api.records import CapacityReservation

RULES = Rules()
CAPACITY_BLOCK = "capacity-block"
_CLOSED_BEFORE_END = timedelta(minutes=30)
"""How long before its end a Capacity Block stops accepting launches."""
_LEAD_TIME = timedelta(minutes=30)
_DAY = timedelta(days=1)
_ID = re.compile(r"cr-[0-9a-f]{17}")
"""The form that AWS's list of error codes gives for InvalidCapacityReservationId.Malformed."""
_LIVE = ("pending", "running", "shutting-down", "stopping")


@dataclass(frozen=True)
class ReservationHeadroom:
    """The headroom in a reservation: the number of free instances, and the error for a launch that needs more."""

    count: int
    why: AwsError


@RULES.action("CreateCapacityReservation")
def create_reservation(call: ParsedRequest) -> dict[str, Any]:
    """Create an On-Demand Capacity Reservation."""
    instance_type, zone = str(call.params.get("InstanceType") or ""), str(call.params.get("AvailabilityZone") or "")
    instance_types.require_type(call, instance_type)
    instance_types.require_zone(call.region, instance_type, zone)
    now = call.world.clock.now()
    starts, ends = _utc_time(call, "StartDate") or now, _utc_time(call, "EndDate")
    reservation = CapacityReservation(
        f"cr-{secrets.token_hex(8)}0", "default", instance_type, zone, _count(call), now, starts, ends
    )
    return {"CapacityReservation": _save(call, reservation)}


@RULES.action("DescribeCapacityBlockOfferings")
def describe_block_offerings(call: ParsedRequest) -> dict[str, Any]:
    """Create and return one offering per zone that offers the type. By default, a block starts in half an hour."""
    instance_type = str(call.params.get("InstanceType") or "")
    description = instance_types.require_type(call, instance_type)
    if CAPACITY_BLOCK not in description.get("SupportedUsageClasses", []):
        raise AwsError("Unsupported", f"The instance type {instance_type} is not supported for Capacity Blocks.")
    now = call.world.clock.now()
    starts = _utc_time(call, "StartDateRange") or now + _LEAD_TIME
    ends = starts + timedelta(hours=int(call.params.get("CapacityDurationHours") or 24))
    rows = []
    for zone in instance_types.zones_by_type(call.region)[instance_type]:
        offer = CapacityReservation(
            f"cbo-{secrets.token_hex(8)}0", CAPACITY_BLOCK, instance_type, zone, _count(call), now, starts, ends
        )
        call.records.offerings[offer.id] = offer
        rows.append(_offering_description(offer))
    return {"CapacityBlockOfferings": rows}


@RULES.action("PurchaseCapacityBlock")
def purchase_block(call: ParsedRequest) -> dict[str, Any]:
    """Purchase an offering, which becomes a capacity reservation."""
    offering_id = str(call.params.get("CapacityBlockOfferingId") or "")
    offer = call.records.offerings.pop(offering_id, None)
    if offer is None:
        raise AwsError("InvalidCapacityBlockOfferingId.NotFound", f"The offering '{offering_id}' does not exist.")
    return {"CapacityReservation": _save(call, replace(offer, id=f"cr-{secrets.token_hex(8)}0"))}


@RULES.action("DescribeCapacityReservations")
def describe_reservations(call: ParsedRequest) -> dict[str, Any]:
    """Describe reservations by id and filter, with pagination."""
    ids = call.texts("CapacityReservationIds")
    for malformed in (reservation_id for reservation_id in ids if not _ID.fullmatch(reservation_id)):
        raise AwsError("InvalidCapacityReservationId.Malformed", f'Invalid id: "{malformed}"')
    for missing in (reservation_id for reservation_id in ids if reservation_id not in call.records.reservations):
        raise _not_found(missing)
    reservations = [reservation for name, reservation in call.records.reservations.items() if not ids or name in ids]
    for name, values in call.filters().items():
        reservations = [
            reservation for reservation in reservations if _reservation_value(call, reservation, name) in values
        ]
    rows, token = paginate_rows(
        [_reservation_description(call, reservation) for reservation in reservations], call.params
    )
    return {"CapacityReservations": rows, "NextToken": token}


@RULES.action("CancelCapacityReservation")
def cancel_reservation(call: ParsedRequest) -> dict[str, Any]:
    """Cancel an On-Demand Capacity Reservation; Capacity Blocks cannot be canceled."""
    reservation_id = str(call.params.get("CapacityReservationId") or "")
    reservation = call.records.reservations.get(reservation_id)
    if reservation is None:
        raise _not_found(reservation_id)
    if reservation.kind == CAPACITY_BLOCK:
        raise AwsError("UnsupportedOperation", "A Capacity Block cannot be cancelled.")
    reservation.cancelled = True
    return {"Return": True}


def free_capacity(call: ParsedRequest, request: MergedLaunchRequest) -> ReservationHeadroom | None:
    """Return the free capacity of the requested reservation, or None if the request specifies no reservation."""
    if not request.reservation and request.market != CAPACITY_BLOCK:
        return None
    reservation = call.records.reservations.get(request.reservation)
    if reservation is None:
        raise _not_found(request.reservation)
    if (reservation.kind == CAPACITY_BLOCK) != (request.market == CAPACITY_BLOCK):
        return ReservationHeadroom(
            0, AwsError("InvalidParameterCombination", "The market type does not match the reservation type.")
        )
    if (reservation.instance_type, reservation.zone) != (request.instance_type, request.zone):
        message = f"{reservation.id} is for {reservation.instance_type} in {reservation.zone}."
        return ReservationHeadroom(0, AwsError("InvalidParameterValue", message))
    code = "ReservationCapacityExceeded" if reservation.kind == "default" else "InsufficientInstanceCapacity"
    error = AwsError(code, f"The capacity of reservation {reservation.id} is insufficient for the request.")
    return ReservationHeadroom(_free(call, reservation) if _accepts_launches(call, reservation) else 0, error)


def _accepts_launches(call: ParsedRequest, reservation: CapacityReservation) -> bool:
    now = call.world.clock.now()
    closing = (
        reservation.ends is not None
        and reservation.kind == CAPACITY_BLOCK
        and now >= reservation.ends - _CLOSED_BEFORE_END
    )
    return _state(call, reservation) == "active" and not closing


def _free(call: ParsedRequest, reservation: CapacityReservation) -> int:
    active_ids = {
        instance.id
        for instance in call.backend.all_instances()
        if instance.state not in ("terminated", "shutting-down")
    }
    used_count = sum(
        name in active_ids and node.reservation == reservation.id for name, node in call.records.nodes.items()
    )
    return max(0, reservation.count - used_count)


def _state(call: ParsedRequest, reservation: CapacityReservation) -> str:
    now: datetime = call.world.clock.now()
    if reservation.cancelled:
        return "cancelled"
    if reservation.ends is not None and now >= reservation.ends:
        return "expired"
    return "scheduled" if now < reservation.starts else "active"


def _utc_time(call: ParsedRequest, name: str) -> datetime | None:
    """Return a time parameter as a UTC time; request parsing drops the time zone."""
    value: datetime | None = call.params.get(name)
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def _count(call: ParsedRequest) -> int:
    count = int(call.params.get("InstanceCount") or 0)
    if count < 1:
        raise AwsError("InvalidParameterValue", "InstanceCount must be at least 1.")
    return count


def _save(call: ParsedRequest, reservation: CapacityReservation) -> dict[str, Any]:
    call.records.reservations[reservation.id] = reservation
    tags = call.tags_for("capacity-reservation")
    if tags:
        call.backend.create_tags([reservation.id], tags)
    return _reservation_description(call, reservation)


def _reservation_description(call: ParsedRequest, reservation: CapacityReservation) -> dict[str, Any]:
    return {
        "CapacityReservationId": reservation.id,
        "CapacityReservationArn": _arn(call, reservation),
        "OwnerId": call.backend.account_id,
        "InstanceType": reservation.instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": reservation.zone,
        "AvailabilityZoneId": call.backend.get_zone_by_name(reservation.zone).zone_id,
        "Tenancy": "default",
        "EbsOptimized": False,
        "EphemeralStorage": False,
        "TotalInstanceCount": reservation.count,
        "AvailableInstanceCount": _free(call, reservation) if _state(call, reservation) == "active" else 0,
        "State": _state(call, reservation),
        "CreateDate": reservation.created,
        "StartDate": reservation.starts,
        "EndDate": reservation.ends,
        "EndDateType": "unlimited" if reservation.ends is None else "limited",
        "InstanceMatchCriteria": "targeted",
        "ReservationType": reservation.kind,
        "Tags": tag_list(dict(call.backend.tags.get(reservation.id, {}))),
    }


def _arn(call: ParsedRequest, reservation: CapacityReservation) -> str:
    return f"arn:aws:ec2:{call.region}:{call.backend.account_id}:capacity-reservation/{reservation.id}"


def _offering_description(offer: CapacityReservation) -> dict[str, Any]:
    ends = offer.ends or offer.starts + _DAY
    return {
        "CapacityBlockOfferingId": offer.id,
        "InstanceType": offer.instance_type,
        "AvailabilityZone": offer.zone,
        "InstanceCount": offer.count,
        "StartDate": offer.starts,
        "EndDate": ends,
        "CapacityBlockDurationHours": int((ends - offer.starts).total_seconds()) // 3600,
        "UpfrontFee": "0.00",
        "CurrencyCode": "USD",
        "Tenancy": "default",
    }


def _reservation_value(call: ParsedRequest, reservation: CapacityReservation, name: str) -> str:
    known = {
        "instance-type": reservation.instance_type,
        "availability-zone": reservation.zone,
        "state": _state(call, reservation),
    }
    if name not in known:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return known[name]


def _not_found(reservation_id: str) -> AwsError:
    return AwsError(
        "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{reservation_id}' does not exist."
    )


@dataclass(frozen=True)
class LaunchHeadroom:
    """The number of requested instances that can launch, and the error for all others, or None if all can launch."""

    count: int
    why: AwsError | None


def launchable_count(call: ParsedRequest, request: MergedLaunchRequest, count: int) -> LaunchHeadroom:
    """Return how many of `count` instances can launch. As on AWS, quotas are checked before zone capacity."""
    reserved = free_capacity(call, request)
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
