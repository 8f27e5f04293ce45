"""Look up capacity reservations and Capacity Blocks."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.plan.reservations import Reservation


def find_reservation(
    clients_for: Callable[[str], Clients], reservation_id: str, regions: Sequence[str]
) -> Reservation | None:
    """Return the reservation with this ID from the first region that has it, or None.

    Raises:
        CloudError: The request failed or AWS is unreachable in one of the regions.
    """
    filters = [{"Name": "capacity-reservation-id", "Values": [reservation_id]}]
    for region in regions:
        with convert_response_errors(f"looking for {reservation_id} in {region}"):
            ec2 = clients_for(region).client("ec2")
            # For an unknown ID, AWS returns an error if it is a parameter, but an empty list if it is a filter.
            rows = ec2.describe_capacity_reservations(Filters=filters)["CapacityReservations"]
            if rows:
                return _reservation(rows[0], region)
    return None


def _reservation(row: Mapping[str, Any], region: str) -> Reservation:
    starts_at = _time(row.get("StartDate"))
    is_inactive = row.get("State") != "active"
    return Reservation(
        id=row["CapacityReservationId"],
        kind="capacity-block" if row.get("ReservationType") == "capacity-block" else "default",
        region=region,
        zone=row["AvailabilityZone"],
        instance_type=row["InstanceType"],
        state=row.get("State", ""),
        free=int(row.get("TotalInstanceCount" if is_inactive else "AvailableInstanceCount") or 0),
        starts_at=starts_at,
        ends_at=_time(row.get("EndDate")),
    )


def _time(value: datetime | None) -> datetime | None:
    return None if value is None else value.astimezone(UTC)
