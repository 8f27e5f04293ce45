"""Look up capacity reservations and Capacity Blocks."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError
from cloudgpu.plan.reservations import Reservation


def find_reservation(
    clients_for: Callable[[str], Clients], reservation_id: str, regions: Sequence[str]
) -> Reservation | None:
    """Return the reservation with this ID from the first region that lists it, or None if no region does."""
    request = {"CapacityReservationIds": [reservation_id]}
    for region in regions:
        try:
            with convert_response_errors(f"looking for {reservation_id} in {region}"):
                # By ID, because none of the operation's filters matches it. EC2 rejects an ID that it does not know.
                rows = clients_for(region).client("ec2").describe_capacity_reservations(**request)
                for row in rows["CapacityReservations"]:
                    return _reservation(row, region)
        except CloudError as err:
            if not is_gone(err):
                raise
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
