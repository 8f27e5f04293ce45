"""Describe instances, terminate them, and wait for their state."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cloudgpu.aws.ec2.tagging import mapped
from cloudgpu.aws.session.errors import answered, is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError

_FILTER_VALUES = 200
"""EC2's own limit on the values of one filter."""
_END_S = 900
ENDED = frozenset({"terminated"})
ENDING = frozenset({"shutting-down", "terminated"})
_TO_END = ("pending", "running", "stopping", "stopped")
_NOT_GONE = (*_TO_END, "shutting-down")


@dataclass(frozen=True)
class Instance:
    """An EC2 instance. `reason` is AWS's code for why it left the running state, if reported."""

    id: str
    type: str
    zone: str
    state: str
    public_address: str
    private_address: str
    launched_at: datetime
    tags: Mapping[str, str]
    interface_types: tuple[str, ...]
    placement_group: str
    reason: str = ""
    reason_text: str = ""


def describe(clients: Clients, ids: Sequence[str]) -> tuple[Instance, ...]:
    """Return the instances with these IDs, in the same order, without those that AWS does not know.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    found: dict[str, Instance] = {}
    for chunk in _chunks(ids):
        found |= {instance.id: instance for instance in matching(clients, {"instance-id": chunk})}
    return tuple(found[instance_id] for instance_id in ids if instance_id in found)


def described(clients: Clients, ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the instances with these ids as DescribeInstances shows them; one that AWS does not list is left out.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    for chunk in _chunks(ids):
        with answered("looking for examples"):
            filters = [{"Name": "instance-id", "Values": list(chunk)}]
            pages = clients.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
            rows = [
                instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            ]
        yield from rows


def matching(clients: Clients, filters: Mapping[str, Sequence[str]]) -> tuple[Instance, ...]:
    """Return the instances that match all filters, sorted by ID.

    Raises:
        CloudError: AWS refused or cannot be reached.
    """
    wanted = [{"Name": name, "Values": list(values)} for name, values in filters.items()]
    with answered("looking for examples"):
        pages = clients.client("ec2").get_paginator("describe_instances").paginate(Filters=wanted)
        return tuple(sorted(_instances(pages), key=lambda instance: instance.id))


def terminate(clients: Clients, clock: Clock, ids: Sequence[str], *, total_s: float = _END_S) -> None:
    """End instances and return when AWS says that every one is terminated. Ending twice is harmless.

    Raises:
        CloudError: AWS refused, cannot be reached, or took longer than `total_s`.
    """
    if not ids:
        return
    try:
        to_end = _in_states(clients, ids, _TO_END)
    except CloudGpuError:
        # Whether they still run is unknown: they are ended all the same, and the wait below reports what is wrong.
        to_end = set(ids)
    for instance_ids in _chunks(sorted(to_end)):
        _terminate(clients, instance_ids)
    what = f"{len(ids)} instances to end"
    awaited(clock, lambda: not _in_states(clients, ids, _NOT_GONE) or None, what=what, total_s=total_s)


def _in_states(clients: Clients, ids: Sequence[str], states: Sequence[str]) -> set[str]:
    """Return the IDs of the instances in one of these states. Responses get shorter as instances terminate."""
    asked = ({"instance-id": chunk, "instance-state-name": states} for chunk in _chunks(ids))
    return {instance.id for filters in asked for instance in matching(clients, filters) if instance.state in states}


def _terminate(clients: Clients, ids: Sequence[str]) -> None:
    """Terminate instances, one by one if the call fails because one of the IDs no longer exists."""
    try:
        with typed(f"ending {len(ids)} instances"):
            clients.client("ec2").terminate_instances(InstanceIds=list(ids))
    except CloudGpuError as err:
        if not is_gone(err):
            raise
        if len(ids) > 1:
            for instance_id in ids:
                _terminate(clients, [instance_id])


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _FILTER_VALUES] for start in range(0, len(ids), _FILTER_VALUES))


def _instances(pages: Any) -> Iterator[Instance]:  # noqa: ANN401
    for page in pages:
        for reservation in page["Reservations"]:
            yield from map(_instance, reservation["Instances"])


def _instance(found: Mapping[str, Any]) -> Instance:
    reason = found.get("StateReason") or {}
    interfaces = found.get("NetworkInterfaces") or ()
    return Instance(
        id=found["InstanceId"],
        type=found["InstanceType"],
        zone=found["Placement"]["AvailabilityZone"],
        state=found["State"]["Name"],
        public_address=found.get("PublicIpAddress") or "",
        private_address=found.get("PrivateIpAddress") or "",
        launched_at=found["LaunchTime"].astimezone(UTC),
        tags=mapped(found.get("Tags")),
        interface_types=tuple(interface.get("InterfaceType") or "interface" for interface in interfaces),
        placement_group=found["Placement"].get("GroupName") or "",
        reason=reason.get("Code") or "",
        reason_text=reason.get("Message") or "",
    )
