"""Find, describe and terminate instances, attach volumes to them, and list the instance types that zones offer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from cloudgpu.aws.ec2.tagging import SHUTDOWN_S, tags_to_dict
from cloudgpu.aws.prices_and_quotas import strip_trailing_zeros
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors, error_from_code, is_gone
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients
from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.clock import Clock
from cloudgpu.errors import AuthError, BusyError, CloudError, CloudGpuError, LaunchError
from cloudgpu.plan.plan import Quotes
from cloudgpu.workers import Workers

GPU_FAMILIES: Final = [{"Name": "instance-type", "Values": ["p*", "g*"]}]
"""EC2 has no filter for GPUs, but the names of all its instance types with NVIDIA GPUs match these patterns."""
_PAGE: Final = 100
_MIB_PER_GIB: Final = 1024
_START_S = 300
"""Time limit in seconds for an instance to start running. A volume cannot be attached to a pending instance."""
_LETTERS = "fghijklmnop"
"""Letters of the device names `/dev/sdf` to `/dev/sdp`, which AWS recommends for data volumes."""
_FILTER_VALUES = 200
"""EC2's limit on the number of values in one filter."""
_TERMINATION_S = 900
_TERMINABLE = ("pending", "running", "stopping", "stopped")
_NOT_TERMINATED = (*_TERMINABLE, "shutting-down")
_AT_ONCE = 8
_DENIED = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})


def describe_gpu_types(clients: Clients) -> dict[str, TypeFacts]:
    """Return the region's instance types by name, limited to those that cloudgpu's machine images support.

    These are the types with an x86-64 processor and one model of NVIDIA GPU, attached whole rather than partitioned.
    """
    with convert_response_errors(f"listing the GPU instance types in {clients.region}"):
        paginator = clients.client("ec2").get_paginator("describe_instance_types")
        pages = paginator.paginate(Filters=GPU_FAMILIES, PaginationConfig={"PageSize": _PAGE})
        return dict(sorted(_rows(pages)))


def _rows(pages: Any) -> Iterator[tuple[str, TypeFacts]]:  # noqa: ANN401
    for page in pages:
        for row in page["InstanceTypes"]:
            gpus = row.get("GpuInfo", {}).get("Gpus") or []
            if len(gpus) == 1 and _is_whole_nvidia(gpus[0]) and _is_x86(row):
                yield str(row["InstanceType"]), _facts(row, gpus[0])


def _is_whole_nvidia(gpu: Mapping[str, Any]) -> bool:
    return gpu.get("Manufacturer") == "NVIDIA" and gpu.get("GpuPartitionSize", 1) == 1


def _is_x86(row: Mapping[str, Any]) -> bool:
    return "x86_64" in row["ProcessorInfo"].get("SupportedArchitectures", [])


def _facts(row: Mapping[str, Any], gpu: Mapping[str, Any]) -> TypeFacts:
    network = row.get("NetworkInfo", {})
    disks = row.get("InstanceStorageInfo", {}).get("Disks") or [{}]
    return TypeFacts(
        gpu=str(gpu["Name"]),
        gpus=int(gpu["Count"]),
        gpu_memory_gib=strip_trailing_zeros(
            (Decimal(gpu["MemoryInfo"]["SizeInMiB"]) / _MIB_PER_GIB).quantize(Decimal("0.1"))
        ),
        vcpus=int(row["VCpuInfo"]["DefaultVCpus"]),
        memory_gib=int(row["MemoryInfo"]["SizeInMiB"]) // _MIB_PER_GIB,
        efa_interfaces=int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)),
        network_cards=int(network.get("MaximumNetworkCards", 1)),
        network=str(network.get("NetworkPerformance", "")),
        usage_classes=tuple(str(usage_class) for usage_class in row.get("SupportedUsageClasses", [])),
        nvme_disks=int(disks[0].get("Count", 0)),
        nvme_gb=int(disks[0].get("SizeInGB", 0)),
        current=bool(row.get("CurrentGeneration")),
    )


def attach_volume(clients: Clients, clock: Clock, volume_id: str, instance_id: str, number: int) -> None:
    """Attach a volume to an instance as data disk `number`, counted from 0. Idempotent."""
    attached_to = _attached_to(clients, volume_id)
    if attached_to == instance_id:
        return
    if attached_to:
        message = f"volume {volume_id} is attached to {attached_to}"
        raise BusyError(message, hint="delete the cluster that contains this instance first: `cloudgpu down CLUSTER`")
    poll(
        clock,
        lambda: _is_running(clients, instance_id) or None,
        what=f"{instance_id} to start running",
        total_s=_START_S,
    )
    with convert_errors(f"attaching {volume_id} to {instance_id}"):
        device = f"/dev/sd{_LETTERS[number % len(_LETTERS)]}"
        clients.client("ec2").attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device=device)


def _attached_to(clients: Clients, volume_id: str) -> str:
    with convert_errors(f"describing volume {volume_id}"):
        (volume,) = clients.client("ec2").describe_volumes(VolumeIds=[volume_id])["Volumes"]
    return next((str(attachment["InstanceId"]) for attachment in volume.get("Attachments") or ()), "")


def _is_running(clients: Clients, instance_id: str) -> bool:
    """Return True if the instance is running."""
    with convert_errors(f"describing instance {instance_id}"):
        response = clients.client("ec2").describe_instances(InstanceIds=[instance_id])
    (state,) = [str(instance["State"]["Name"]) for row in response["Reservations"] for instance in row["Instances"]]
    if state not in ("pending", "running"):
        message = f"instance {instance_id} is {state}, so its storage cannot be attached"
        raise CloudError(message, hint="run `cloudgpu up` again to replace the instance; the storage is unchanged")
    return state == "running"


@dataclass(frozen=True)
class Instance:
    """An EC2 instance. `reason` and `reason_text` are the code and message of EC2's `StateReason`, or empty."""

    id: str
    type: str
    zone: str
    state: str
    public_address: str
    private_address: str
    launched_at: datetime
    tags: Mapping[str, str]
    placement_group: str
    reason: str = ""
    reason_text: str = ""


def describe(clients: Clients, ids: Sequence[str]) -> tuple[Instance, ...]:
    """Return the instances with these IDs in the same order, omitting IDs that AWS does not list."""
    by_id: dict[str, Instance] = {}
    for chunk in _chunks(ids):
        by_id |= {instance.id: instance for instance in find_instances(clients, {"instance-id": chunk})}
    return tuple(by_id[instance_id] for instance_id in ids if instance_id in by_id)


def describe_rows(clients: Clients, ids: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the DescribeInstances entries of the instances with these IDs, omitting IDs that AWS does not list."""
    for chunk in _chunks(ids):
        with convert_response_errors("describing instances"):
            filters = [{"Name": "instance-id", "Values": list(chunk)}]
            pages = clients.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
            rows = [
                instance
                for page in pages
                for reservation in page["Reservations"]
                for instance in reservation["Instances"]
            ]
        yield from rows


def find_instances(clients: Clients, filters: Mapping[str, Sequence[str]]) -> tuple[Instance, ...]:
    """Return the instances that match all filters, sorted by ID."""
    aws_filters = [{"Name": name, "Values": list(values)} for name, values in filters.items()]
    with convert_response_errors("describing instances"):
        pages = clients.client("ec2").get_paginator("describe_instances").paginate(Filters=aws_filters)
        return tuple(sorted(_instances(pages), key=lambda instance: instance.id))


def terminate(
    clients: Clients,
    clock: Clock,
    ids: Sequence[str],
    *,
    total_s: float = _TERMINATION_S,
    shutdown_s: float = SHUTDOWN_S,
) -> None:
    """Terminate instances and wait until AWS reports every instance as terminated. Idempotent.

    Args:
        clients: Clients for the region of the instances.
        clock: Clock for waiting.
        ids: IDs of the instances.
        total_s: Seconds within which every instance must at least be shutting down.
        shutdown_s: Seconds within which every instance must be terminated.
    """
    if not ids:
        return
    try:
        not_terminated = _in_states(clients, ids, _TERMINABLE)
    except CloudGpuError:
        # The states are unknown, so terminate all instances. If the error persists, the wait below reports it.
        not_terminated = dict.fromkeys(ids, "")
    for instance_ids in _chunks(sorted(not_terminated)):
        _terminate(clients, instance_ids)
    began = clock.monotonic()

    def all_terminated() -> bool | None:
        remaining = _in_states(clients, ids, _NOT_TERMINATED)
        if remaining and set(remaining.values()).isdisjoint(_TERMINABLE):
            return None  # shutting down, within the limit of the poll
        if remaining and clock.monotonic() - began >= total_s:
            message = f"timed out after {total_s:.0f} s waiting for {_count(ids)} to shut down"
            raise CloudError(message, code="TimedOut", hint="run the same command again")
        return not remaining or None

    what = f"{_count(ids)} to terminate, which AWS no longer bills"
    poll(clock, all_terminated, what=what, total_s=max(total_s, shutdown_s))


def _count(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} instances"


def _in_states(clients: Clients, ids: Sequence[str], states: Sequence[str]) -> dict[str, str]:
    """Return the instances in one of these states. AWS filters by state, which keeps the responses short."""
    filter_sets = ({"instance-id": chunk, "instance-state-name": states} for chunk in _chunks(ids))
    return {
        instance.id: instance.state
        for filters in filter_sets
        for instance in find_instances(clients, filters)
        if instance.state in states
    }


def _terminate(clients: Clients, ids: Sequence[str]) -> None:
    """Terminate instances. If the call fails because an ID no longer exists, retry the IDs one by one."""
    try:
        with convert_errors(f"terminating {ids[0] if len(ids) == 1 else f'{len(ids)} instances'}"):
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


def _instance(row: Mapping[str, Any]) -> Instance:
    reason = row.get("StateReason") or {}
    return Instance(
        id=row["InstanceId"],
        type=row["InstanceType"],
        zone=row["Placement"]["AvailabilityZone"],
        state=row["State"]["Name"],
        public_address=row.get("PublicIpAddress") or "",
        private_address=row.get("PrivateIpAddress") or "",
        launched_at=row["LaunchTime"].astimezone(UTC),
        tags=tags_to_dict(row.get("Tags")),
        placement_group=row["Placement"].get("GroupName") or "",
        reason=reason.get("Code") or "",
        reason_text=reason.get("Message") or "",
    )


def launch_failure(instance: Instance) -> LaunchError:
    """Return the error for an instance that did not start. Its state reason determines what is tried next."""
    doing = f"instance {instance.id} terminated while starting"
    err = error_from_code(instance.reason, instance.reason_text or instance.state, doing)
    return err if isinstance(err, LaunchError) else LaunchError(err.message, code=instance.reason, hint=err.hint)


def offered_zones(clients_for: Callable[[str], Clients], pairs: Sequence[tuple[str, str]]) -> Quotes:
    """Return the zones of the region that offer the instance type, for each (instance type, region) pair.

    The zones are empty if the region does not offer the type. If the caller lacks the permission in a region, the
    region is omitted from `zones`, and `zones_unknown` contains the reason.
    """
    regions = sorted({region for _, region in pairs})
    types = {region: sorted({name for name, where in pairs if where == region}) for region in regions}
    with Workers(_AT_ONCE) as workers:
        results = workers.map(lambda region: _offered_or_error(clients_for(region), types[region]), regions)
        by_region = dict(zip(regions, results, strict=True))
    offered = {region: result for region, result in by_region.items() if not isinstance(result, str)}
    zones = {
        (name, region): tuple(sorted(offered[region].get(name, ()))) for name, region in pairs if region in offered
    }
    return Quotes(
        zones=zones, live=True, zones_unknown={region: why for region, why in by_region.items() if isinstance(why, str)}
    )


def gpu_type_zones(clients: Clients) -> dict[str, tuple[str, ...]]:
    """Return the zones in which the region offers each GPU instance type."""
    with convert_response_errors(f"listing the zones of {clients.region} that offer GPU instances"):
        offerings = _zones(clients, GPU_FAMILIES)
    return {name: tuple(sorted(zone_names)) for name, zone_names in sorted(offerings.items())}


def free_addresses(clients_for: Callable[[str], Clients], regions: Sequence[str]) -> dict[str, int]:
    """Return how many more Elastic IPs the account can allocate in each region whose limit is known."""
    with Workers(_AT_ONCE) as workers:
        limits = workers.map(lambda region: _free_addresses(clients_for(region)), regions)
        return {region: free for region, free in zip(regions, limits, strict=True) if free is not None}


def _free_addresses(clients: Clients) -> int | None:
    """Return how many more Elastic IPs the account can allocate, or None if AWS denies access or reports no limit."""
    ec2 = clients.client("ec2")
    try:
        with convert_response_errors(f"reading the Elastic IP limit in {clients.region}"):
            attributes = ec2.describe_account_attributes(AttributeNames=["vpc-max-elastic-ips"])["AccountAttributes"]
            in_use = len(ec2.describe_addresses()["Addresses"])
            allowed = [
                int(value["AttributeValue"]) for attribute in attributes for value in attribute["AttributeValues"]
            ]
    except AuthError:
        return None
    return max(0, allowed[0] - in_use) if allowed else None


def _offered_or_error(clients: Clients, types: Sequence[str]) -> dict[str, set[str]] | str:
    """Return the zones of each type, or the error message if a permission is missing."""
    try:
        return _offered(clients, types)
    except AuthError as err:
        if err.code not in _DENIED:
            raise
        return err.message


def _offered(clients: Clients, types: Sequence[str]) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {}
    for start in range(0, len(types), _FILTER_VALUES):
        filters = [{"Name": "instance-type", "Values": list(types[start : start + _FILTER_VALUES])}]
        with convert_response_errors(f"listing the zones of {clients.region} that offer {', '.join(types)}"):
            zones |= _zones(clients, filters)
    return zones


def _zones(clients: Clients, filters: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    zones: dict[str, set[str]] = {}
    paginator = clients.client("ec2").get_paginator("describe_instance_type_offerings")
    for page in paginator.paginate(LocationType="availability-zone", Filters=filters):
        for offering in page["InstanceTypeOfferings"]:
            zones.setdefault(offering["InstanceType"], set()).add(offering["Location"])
    return zones
