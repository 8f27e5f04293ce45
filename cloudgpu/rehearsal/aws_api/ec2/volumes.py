"""EBS volumes: checks that moto lacks, for creating and attaching volumes."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_GP3 = {"size": (1, 65536), "iops": (3000, 80000), "throughput": (125, 2000)}
"""Minimum and maximum of each property, in GiB, IOPS and MiB/s."""


@rule("CreateVolume")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Validate the request as EC2 does, then create a volume."""
    params = call.params
    zone = str(params.get("AvailabilityZone") or "")
    if not zone.startswith(call.region) or zone not in {
        known.name for known in call.backend.describe_availability_zones()
    }:
        raise AwsError("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    size = _number(params, "Size")
    snapshot_id = str(params.get("SnapshotId") or "")
    if snapshot_id:
        snapshot = call.backend.snapshots.get(snapshot_id)
        if snapshot is None:
            raise AwsError("InvalidSnapshot.NotFound", f"The snapshot '{snapshot_id}' does not exist.")
        low = int(snapshot.volume.size)
        if size is not None and size < low:
            message = f"The size of a volume cannot be smaller than the size of its snapshot, {low} GiB."
            raise AwsError("InvalidParameterValue", message)
    if params.get("VolumeType") == "gp3":
        properties = {"size": size, "iops": _number(params, "Iops"), "throughput": _number(params, "Throughput")}
        for name, value in properties.items():
            low, high = _GP3[name]
            if value is not None and not low <= value <= high:
                raise AwsError("InvalidParameterValue", f"Volume {name} of {value} is not between {low} and {high}.")
    return call.proceed()


@rule("AttachVolume")
def attach(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Attach a volume to a running or stopped instance in the same zone; a volume attaches to only one instance."""
    volume = call.backend.get_volume(str(call.params.get("VolumeId") or ""))
    instance = call.backend.get_instance(str(call.params.get("InstanceId") or ""))
    zone = str(instance.placement.zone)
    if volume.zone.name != zone:
        message = f"The volume '{volume.id}' is not in the same availability zone as instance '{instance.id}'"
        raise AwsError("InvalidVolume.ZoneMismatch", message)
    attached = getattr(volume, "attachment", None)
    if attached is not None:
        message = f"{volume.id} is already attached to an instance"
        raise AwsError("VolumeInUse", message)
    if instance.state not in ("running", "stopped"):
        raise AwsError("IncorrectState", f"Instance '{instance.id}' is not 'running'.")
    return call.proceed()


def _number(params: dict[str, Any], name: str) -> int | None:
    value = params.get(name)
    return None if value in (None, "") else int(value)
