"""Capacity reservations and Capacity Blocks, as AWS describes them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloudgpu.aws.session.errors import answered
from cloudgpu.aws.session.session import Clients
from cloudgpu.plan.reservations import Reservation


def look_up(clients_for: Callable[[str], Clients], reservation_id: str, regions: Sequence[str]) -> Reservation | None:
    """Return the reservation with this ID from the first region that has it, or None.

    Raises:
        CloudError: AWS refused or cannot be reached in one of the regions.
    """
    filters = [{"Name": "capacity-reservation-id", "Values": [reservation_id]}]
    for region in regions:
        with answered(f"looking for {reservation_id} in {region}"):
            ec2 = clients_for(region).client("ec2")
            # By filter, never by id: another region answers with an error to an id that it does not know.
            found = ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"]
            if found:
                return _reservation(found[0], region)
    return None


def _reservation(found: Mapping[str, Any], region: str) -> Reservation:
    starts_at = _time(found.get("StartDate"))
    before = found.get("State") != "active"
    return Reservation(
        id=found["CapacityReservationId"],
        kind="capacity-block" if found.get("ReservationType") == "capacity-block" else "default",
        region=region,
        zone=found["AvailabilityZone"],
        instance_type=found["InstanceType"],
        state=found.get("State", ""),
        free=int(found.get("TotalInstanceCount" if before else "AvailableInstanceCount") or 0),
        starts_at=starts_at,
        ends_at=_time(found.get("EndDate")),
    )


def _time(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)
