"""Look up machine images by their SSM parameters, and what AWS says about them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from cloudgpu import bounds
from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, CloudError, CloudGpuError
from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.workers import Workers

_AT_ONCE = 8


def resolve_image_ids(
    clients_for: Callable[[str], Clients], parameters: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], str]:
    """Return the image ID for each (parameter, region) pair.

    Parameters that do not exist or that the caller may not read are omitted.
    """
    with Workers(_AT_ONCE) as workers:
        image_ids = list(workers.map(lambda pair: _value(clients_for(pair[1]), pair[0]), parameters))
    return {key: image for key, image in zip(parameters, image_ids, strict=True) if image}


def describe_images(
    clients_for: Callable[[str], Clients], images: Sequence[tuple[str, str]]
) -> Mapping[tuple[str, str], MachineImageSeen]:
    """Return what AWS says about each (image ID or SSM parameter, region) pair.

    Images are asked for by ID, because AWS lists deprecated images only then.
    """
    with Workers(_AT_ONCE) as workers:
        seen = list(workers.map(lambda pair: _seen(clients_for(pair[1]), pair[0]), images))
    return dict(zip(images, seen, strict=True))


def _seen(clients: Clients, image: str) -> MachineImageSeen:
    """Return what AWS says about an image; `missing` also if the image exists but is not shared with the account."""
    is_id = image.startswith("ami-")
    try:
        if not is_id:
            with convert_response_errors(f"reading the parameter {image} in {clients.region}"):
                clients.client("ssm").get_parameter(Name=image)
            return MachineImageSeen("there")
        with convert_response_errors(f"reading image {image} in {clients.region}"):
            rows = clients.client("ec2").describe_images(ImageIds=[image], IncludeDisabled=True)["Images"]
            return _image(rows[0]) if rows else MachineImageSeen("missing", f"there is no image {image}")
    except AuthError as err:
        return MachineImageSeen("unknown", err.message)
    except CloudGpuError as err:
        # `InvalidAMIID.Unavailable`: the image was deregistered.
        if is_gone(err) or (isinstance(err, CloudError) and err.code.startswith("InvalidAMIID.")):
            return MachineImageSeen("missing", err.message)
        raise


def _image(row: Mapping[str, Any]) -> MachineImageSeen:
    deprecated = row.get("DeprecationTime")
    return MachineImageSeen(
        "there",
        root_gib=_snapshot_gib(row),
        architecture=str(row.get("Architecture") or ""),
        unfit=next(_unfit(row), ""),
        deprecated_on=datetime.fromisoformat(deprecated).date() if deprecated else None,
        product_codes=tuple(
            str(product["ProductCodeId"])
            for product in row.get("ProductCodes") or ()
            if product.get("ProductCodeType") == "marketplace"
        ),
    )


def _unfit(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield why no GPU instance can start from the image."""
    state = str(row.get("State") or "available")
    if state != "available":
        yield f"is {state}"
    if str(row.get("Platform") or "").lower() == "windows":
        yield "is a Windows image"
    if row.get("RootDeviceType") == "instance-store":
        yield "has no EBS root volume"
    if row.get("VirtualizationType") == "paravirtual":
        yield "is paravirtual, which GPU types do not support"
    if row.get("EnaSupport") is False:
        yield "does not support enhanced networking (ENA)"


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
