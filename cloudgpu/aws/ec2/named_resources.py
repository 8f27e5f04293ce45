"""Look up the datasets, keys, networks and capacity reservations that a recipe or the settings name.

They are checked before anything is created.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from cloudgpu.aws.s3 import S3Location, archived_objects, below, look_up_bucket_region
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, CloudGpuError
from cloudgpu.plan.capacity import Reservation
from cloudgpu.plan.named_resources import DatasetSeen, NamedKind, Presence
from cloudgpu.text import plural, printable

_COUNTED: Final = 10_000
"""Maximum number of objects whose sizes are added up. Listing 10,000 objects takes ten requests."""
_SHOWN: Final = 200

_DESCRIBE_CALLS: Final[Mapping[NamedKind, Callable[[Clients, str], Any]]] = {
    "key pair": lambda clients, name: clients.client("ec2").describe_key_pairs(KeyNames=[name]),
    "role": lambda clients, name: clients.client("iam").get_role(RoleName=name),
    "permissions boundary": lambda clients, arn: clients.client("iam").get_policy(PolicyArn=arn),
    "instance profile": lambda clients, name: clients.client("iam").get_instance_profile(InstanceProfileName=name),
    "VPC": lambda clients, name: clients.client("ec2").describe_vpcs(VpcIds=[name]),
    "subnet": lambda clients, name: clients.client("ec2").describe_subnets(SubnetIds=[name]),
    "security group": lambda clients, name: clients.client("ec2").describe_security_groups(GroupIds=[name]),
}

PresenceResult = tuple[Presence, str]
"""Presence of a resource, and the error message if the presence is `unknown`."""


def check_dataset(clients: Clients, url: str) -> DatasetSeen:
    """List the objects under an S3 URL and add up their sizes.

    The result is `missing` if there is no bucket or no object, `archived` if objects must be restored before they can
    be read, and `unknown` if a request failed or the text is not an S3 URL. If there are more than 10,000 objects, the
    size is a lower bound.
    """
    region = ""
    try:
        address = S3Location.parse(url)
        region = look_up_bucket_region(clients.client("s3"), address)
        with convert_response_errors(f"listing {url}"):
            objects = list(islice(below(clients.client("s3"), address), _COUNTED + 1))
    except CloudGpuError as err:
        if is_gone(err):
            return DatasetSeen("missing", f"there is no bucket {S3Location.parse(url).bucket}")
        return DatasetSeen("unknown", err.message, region=region)
    if not objects:
        return DatasetSeen("missing", f"there are no objects under {url}", region=region)
    counted = objects[:_COUNTED]
    archived = archived_objects(clients.client("s3"), address, counted)
    return DatasetSeen(
        "archived" if archived else "there",
        _describe_archived(archived, len(counted), address.bucket),
        size_bytes=sum(item.size for item in counted),
        whole=len(objects) <= _COUNTED,
        region=region,
    )


def _describe_archived(archived: Mapping[str, str], count: int, bucket: str) -> str:
    """Describe which of the listed objects are archived, with an example; empty if none is."""
    if not archived:
        return ""
    key, classes = next(iter(archived)), ", ".join(sorted(set(archived.values())))
    example = printable(f"s3://{bucket}/{key}")[:_SHOWN]
    are = "is" if len(archived) == 1 else "are"
    return f"{len(archived)} of {plural(count, 'object')} {are} archived ({classes}), such as {example}"


def check_named_resource(clients: Clients, kind: NamedKind, name: str) -> PresenceResult:
    """Check whether a resource named in the recipe or the settings exists, in the region or globally."""
    return _seen(f"looking for {kind} {name} in {clients.region}", lambda: _DESCRIBE_CALLS[kind](clients, name))


def _seen(what: str, ask: Callable[[], Any]) -> PresenceResult:
    try:
        with convert_errors(what):
            ask()
    except CloudGpuError as err:
        return ("missing", "") if is_gone(err) else ("unknown", err.message)
    return "there", ""


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
