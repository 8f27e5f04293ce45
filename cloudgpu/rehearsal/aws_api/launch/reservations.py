"""Capacity reservations and Capacity Blocks: one type in one zone, with start, end and instance count."""

import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, page, rule, tag_list
from cloudgpu.rehearsal.state.records import CapacityReservation

BLOCK = "capacity-block"
_LAUNCHED_UNTIL = timedelta(minutes=30)
"""A Capacity Block accepts no launches in its last half hour."""
_LEAD = timedelta(minutes=30)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Held:
    """Number of instances that a reservation has room for, and the error for the others."""

    count: int
    why: AwsError


@rule("CreateCapacityReservation")
def create(call: ParsedRequest) -> dict[str, Any]:
    """Reserve capacity by the hour."""
    instance_type, zone = str(call.params.get("InstanceType") or ""), str(call.params.get("AvailabilityZone") or "")
    instance_types.require_type(call, instance_type)
    instance_types.require_zone(call.region, instance_type, zone)
    now = call.world.clock.now()
    starts, ends = _time(call, "StartDate") or now, _time(call, "EndDate")
    made = CapacityReservation(
        f"cr-{secrets.token_hex(8)}0", "default", instance_type, zone, _count(call), now, starts, ends
    )
    return {"CapacityReservation": _kept(call, made)}


@rule("DescribeCapacityBlockOfferings")
def offerings(call: ParsedRequest) -> dict[str, Any]:
    """Return one offering per zone that has the type, from the requested start or in half an hour."""
    instance_type = str(call.params.get("InstanceType") or "")
    facts = instance_types.require_type(call, instance_type)
    if BLOCK not in facts.get("SupportedUsageClasses", []):
        raise AwsError("Unsupported", f"The instance type {instance_type} is not supported for Capacity Blocks.")
    now = call.world.clock.now()
    starts = _time(call, "StartDateRange") or now + _LEAD
    ends = starts + timedelta(hours=int(call.params.get("CapacityDurationHours") or 24))
    rows = []
    for zone in instance_types.zones_by_type(call.region)[instance_type]:
        offer = CapacityReservation(
            f"cbo-{secrets.token_hex(8)}0", BLOCK, instance_type, zone, _count(call), now, starts, ends
        )
        call.records.offerings[offer.id] = offer
        rows.append(_offered(offer))
    return {"CapacityBlockOfferings": rows}


@rule("PurchaseCapacityBlock")
def purchase(call: ParsedRequest) -> dict[str, Any]:
    """Purchase an offering."""
    named = str(call.params.get("CapacityBlockOfferingId") or "")
    offer = call.records.offerings.pop(named, None)
    if offer is None:
        raise AwsError("InvalidCapacityBlockOfferingId.NotFound", f"The offering '{named}' does not exist.")
    return {"CapacityReservation": _kept(call, replace(offer, id=f"cr-{secrets.token_hex(8)}0"))}


@rule("DescribeCapacityReservations")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe reservations by id and filter, in pages."""
    ids = call.texts("CapacityReservationIds")
    for missing in (reservation_id for reservation_id in ids if reservation_id not in call.records.reservations):
        raise _unknown(missing)
    found = [reservation for name, reservation in call.records.reservations.items() if not ids or name in ids]
    for name, values in call.filters().items():
        found = [reservation for reservation in found if _value(call, reservation, name) in values]
    rows, token = page([_shown(call, reservation) for reservation in found], call.params)
    return {"CapacityReservations": rows, "NextToken": token}


@rule("CancelCapacityReservation")
def cancel(call: ParsedRequest) -> dict[str, Any]:
    """Cancel an hourly reservation; Capacity Blocks cannot be cancelled."""
    named = str(call.params.get("CapacityReservationId") or "")
    found = call.records.reservations.get(named)
    if found is None:
        raise _unknown(named)
    if found.kind == BLOCK:
        raise AwsError("UnsupportedOperation", "A Capacity Block cannot be cancelled.")
    found.cancelled = True
    return {"Return": True}


def room(call: ParsedRequest, wanted: MergedLaunchRequest) -> Held | None:
    """Return the room of the reservation that a launch names, or None if it names none.

    Raises:
        AwsError: There is no such reservation.
    """
    if not wanted.reservation and wanted.market != BLOCK:
        return None
    found = call.records.reservations.get(wanted.reservation)
    if found is None:
        raise _unknown(wanted.reservation)
    if (found.kind == BLOCK) != (wanted.market == BLOCK):
        return Held(0, AwsError("InvalidParameterCombination", "The market and the kind of reservation do not match."))
    if (found.instance_type, found.zone) != (wanted.instance_type, wanted.zone):
        message = f"{found.id} is for {found.instance_type} in {found.zone}."
        return Held(0, AwsError("InvalidParameterValue", message))
    short = "ReservationCapacityExceeded" if found.kind == "default" else "InsufficientInstanceCapacity"
    why = AwsError(short, f"The capacity of reservation {found.id} is insufficient for the request.")
    return Held(_free(call, found) if _takes(call, found) else 0, why)


def _takes(call: ParsedRequest, found: CapacityReservation) -> bool:
    now = call.world.clock.now()
    closing = found.ends is not None and found.kind == BLOCK and now >= found.ends - _LAUNCHED_UNTIL
    return _state(call, found) == "active" and not closing


def _free(call: ParsedRequest, found: CapacityReservation) -> int:
    living = {
        instance.id
        for instance in call.backend.all_instances()
        if instance.state not in ("terminated", "shutting-down")
    }
    used = sum(name in living and node.reservation == found.id for name, node in call.records.nodes.items())
    return max(0, found.count - used)


def _state(call: ParsedRequest, found: CapacityReservation) -> str:
    now: datetime = call.world.clock.now()
    if found.cancelled:
        return "cancelled"
    if found.ends is not None and now >= found.ends:
        return "expired"
    return "scheduled" if now < found.starts else "active"


def _time(call: ParsedRequest, name: str) -> datetime | None:
    """Return a time parameter with the UTC time zone, which parsing drops."""
    value: datetime | None = call.params.get(name)
    return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def _count(call: ParsedRequest) -> int:
    count = int(call.params.get("InstanceCount") or 0)
    if count < 1:
        raise AwsError("InvalidParameterValue", "The count of instances must be at least 1.")
    return count


def _kept(call: ParsedRequest, made: CapacityReservation) -> dict[str, Any]:
    call.records.reservations[made.id] = made
    tags = call.tags_for("capacity-reservation")
    if tags:
        call.backend.create_tags([made.id], tags)
    return _shown(call, made)


def _shown(call: ParsedRequest, found: CapacityReservation) -> dict[str, Any]:
    return {
        "CapacityReservationId": found.id,
        "OwnerId": call.backend.account_id,
        "InstanceType": found.instance_type,
        "InstancePlatform": "Linux/UNIX",
        "AvailabilityZone": found.zone,
        "Tenancy": "default",
        "TotalInstanceCount": found.count,
        "AvailableInstanceCount": _free(call, found) if _state(call, found) == "active" else 0,
        "State": _state(call, found),
        "CreateDate": found.created,
        "StartDate": found.starts,
        "EndDate": found.ends,
        "EndDateType": "unlimited" if found.ends is None else "limited",
        "InstanceMatchCriteria": "targeted",
        "ReservationType": found.kind,
        "Tags": tag_list(dict(call.backend.tags.get(found.id, {}))),
    }


def _offered(offer: CapacityReservation) -> dict[str, Any]:
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


def _value(call: ParsedRequest, found: CapacityReservation, name: str) -> str:
    known = {
        "capacity-reservation-id": found.id,
        "instance-type": found.instance_type,
        "availability-zone": found.zone,
        "state": _state(call, found),
    }
    if name not in known:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return known[name]


def _unknown(named: str) -> AwsError:
    return AwsError("InvalidCapacityReservationId.NotFound", f"The capacity reservation '{named}' does not exist.")
