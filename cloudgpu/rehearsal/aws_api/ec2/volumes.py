"""EBS volumes and snapshots: checks that moto lacks."""

from typing import Any

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule
from cloudgpu.rehearsal.server.error_responses import not_found_message

_GP3 = {"size": (1, 65536), "iops": (3000, 80000), "throughput": (125, 2000)}
"""Minimum and maximum of each property, in GiB, IOPS and MiB/s."""


@rule("CreateVolume")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Validate the request as EC2 does, then create a volume."""
    # EC2 checks the parameters before the zone: localstack, tests/aws/services/ec2/test_ec2.py,
    # test_raise_create_volume_without_size, which names a zone of another region.
    _check_parameters(call.params)
    zone = str(call.params.get("AvailabilityZone") or "")
    if not zone.startswith(call.region) or zone not in {
        known.name for known in call.backend.describe_availability_zones()
    }:
        raise AwsError("InvalidZone.NotFound", f"The zone '{zone}' does not exist.")
    _check_snapshot(call)
    existing = set(call.backend.volumes)
    response = call.proceed()
    for volume_id in call.backend.volumes.keys() - existing:
        volume = call.backend.volumes[volume_id]
        volume.snapshot_id = volume.snapshot_id or ""  # EC2 returns an empty id for a volume that is not a copy
    return response


def _check_parameters(params: dict[str, Any]) -> None:
    if _number(params, "Size") is None and not params.get("SnapshotId"):
        raise AwsError("MissingParameter", "The request must contain the parameter size/snapshot")
    if params.get("VolumeType") != "gp3":
        return
    for name, (low, high) in _GP3.items():
        value = _number(params, name.capitalize())
        if value is not None and value > high:
            raise AwsError("InvalidParameterValue", f"Volume {name} of {value} is too high; maximum is {high}.")
        if value is not None and value < low:
            raise AwsError("InvalidParameterValue", f"Volume {name} of {value} is too low; minimum is {low}.")


def _check_snapshot(call: ParsedRequest) -> None:
    snapshot_id, size = str(call.params.get("SnapshotId") or ""), _number(call.params, "Size")
    if not snapshot_id:
        return
    snapshot = call.backend.snapshots.get(snapshot_id)
    if snapshot is None:
        raise _missing_snapshot([snapshot_id])
    low = int(snapshot.volume.size)
    if size is not None and size < low:
        message = f"The size of a volume cannot be smaller than the size of its snapshot, {low} GiB."
        raise AwsError("InvalidParameterValue", message)


@rule("DescribeSnapshots")
def describe_snapshots(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Describe snapshots; reject ids that do not exist by name, which moto does not name."""
    missing = [snapshot_id for snapshot_id in call.texts("SnapshotIds") if snapshot_id not in call.backend.snapshots]
    if missing:
        raise _missing_snapshot(missing)
    return call.proceed()


@rule("DeleteSnapshot")
def delete_snapshot(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a snapshot; reject an id that does not exist by name, which moto does not name."""
    snapshot_id = str(call.params.get("SnapshotId") or "")
    if snapshot_id not in call.backend.snapshots:
        raise _missing_snapshot([snapshot_id])
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


def _missing_snapshot(ids: list[str]) -> AwsError:
    return AwsError("InvalidSnapshot.NotFound", not_found_message("InvalidSnapshot.NotFound", ids))


def _number(params: dict[str, Any], name: str) -> int | None:
    value = params.get(name)
    return None if value in (None, "") else int(value)
