"""Look up machine images by their SSM parameters, and the root disks that they need."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cloudgpu import bounds
from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudError, CloudGpuError
from cloudgpu.workers import Workers

_AT_ONCE = 8


def resolve_image_ids(
    clients_for: Callable[[str], Clients], parameters: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], str]:
    """Return the image ID for each (parameter, region) pair.

    Parameters that do not exist or that the caller may not read are omitted.

    Raises:
        CloudError: A request failed or AWS is unreachable in one of the regions.
    """
    with Workers(_AT_ONCE) as workers:
        image_ids = list(workers.map(lambda pair: _value(clients_for(pair[1]), pair[0]), parameters))
    return {key: image for key, image in zip(parameters, image_ids, strict=True) if image}


def root_disk_sizes(
    clients_for: Callable[[str], Clients], images: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], int]:
    """Return the least size of the root disk in GiB, the size of its snapshot, for each (image ID, region) pair.

    Images that do not exist, that the caller may not describe, or whose root device has no snapshot are omitted.

    Raises:
        CloudError: A request failed or AWS is unreachable in one of the regions.
    """
    with Workers(_AT_ONCE) as workers:
        sizes = list(workers.map(lambda pair: _root_disk_gib(clients_for(pair[1]), pair[0]), images))
    return {key: gib for key, gib in zip(images, sizes, strict=True) if gib}


def _root_disk_gib(clients: Clients, image_id: str) -> int:
    """Return the size of the root device's snapshot in GiB; 0 if it is unknown."""
    try:
        with convert_response_errors(f"reading the disks of {image_id} in {clients.region}"):
            rows = clients.client("ec2").describe_images(ImageIds=[image_id])["Images"]
            return max((_snapshot_gib(row) for row in rows), default=0)
    except AuthError:
        return 0
    except CloudGpuError as err:
        # `InvalidAMIID.Unavailable`: the image was deregistered. The launch reports both.
        if is_gone(err) or (isinstance(err, CloudError) and err.code.startswith("InvalidAMIID.")):
            return 0
        raise


def _snapshot_gib(row: Mapping[str, Any]) -> int:
    root = row.get("RootDeviceName")
    disks = [disk for disk in row.get("BlockDeviceMappings") or () if disk.get("DeviceName") == root and "Ebs" in disk]
    return max(
        (bounds.checked_count(disk["Ebs"].get("VolumeSize") or 0, 0, bounds.MAX_VOLUME_GIB) for disk in disks),
        default=0,
    )


def _value(clients: Clients, parameter: str) -> str:
    """Return the parameter's value, or an empty string if it does not exist or the caller may not read it.

    The launch reports the error in these two cases.
    """
    try:
        with convert_response_errors(f"reading the parameter {parameter} in {clients.region}"):
            return str(clients.client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"])
    except AuthError:
        return ""
    except CloudGpuError as err:
        if is_gone(err):
            return ""
        raise
