"""Machine images: look up public ones by their SSM parameters; create, find and delete your own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cloudgpu import bounds
from cloudgpu.aws.ec2.tagging import tag_specification, tags_to_dict
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors, is_gone
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.cloud import OwnImage
from cloudgpu.errors import AuthError, CloudError, CloudGpuError
from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.text import command
from cloudgpu.workers import Workers

_AT_ONCE = 8
IMAGE_TAG = "cloudgpu:image"
"""Tag with the name of a cloudgpu image. Images have no cluster tag, so deleting a cluster never deletes an image."""
_READY_S = 3600
_UNKNOWN = datetime.fromtimestamp(0, UTC)
"""Placeholder for a time that AWS does not report or that is implausible."""
_DEREGISTERED = "InvalidAMIID.Unavailable"
"""AWS error code for an image that is already deregistered."""


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


def find_images(clients: Clients, name: str = "") -> tuple[OwnImage, ...]:
    """Return the account's cloudgpu images, oldest first. If `name` is not empty, return only images with this name."""
    aws_filter = {"Name": f"tag:{IMAGE_TAG}", "Values": [name]} if name else {"Name": "tag-key", "Values": [IMAGE_TAG]}
    with convert_response_errors(f"looking for machine images in {clients.region}"):
        response = clients.client("ec2").describe_images(Owners=["self"], Filters=[aws_filter])
        return tuple(sorted(_images(clients.region, response), key=lambda image: image.made_at))


def find_orphaned_snapshots(clients: Clients, name: str, images: Iterable[OwnImage]) -> tuple[OwnImage, ...]:
    """Return the snapshots of cloudgpu images that no image in `images` uses.

    If `name` is not empty, return only snapshots of images with this name. An interrupted image deletion leaves such
    snapshots behind, and AWS still bills them.
    """
    aws_filter = {"Name": f"tag:{IMAGE_TAG}", "Values": [name]} if name else {"Name": "tag-key", "Values": [IMAGE_TAG]}
    with convert_response_errors(f"looking for snapshots of machine images in {clients.region}"):
        pages = (
            clients.client("ec2").get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=[aws_filter])
        )
        rows = [row for page in pages for row in page["Snapshots"]]
        used_snapshots = {snapshot for image in images for snapshot in image.snapshots}
        return tuple(_orphan(clients.region, row) for row in rows if row["SnapshotId"] not in used_snapshots)


def _orphan(region: str, row: Mapping[str, Any]) -> OwnImage:
    tags, since, size = tags_to_dict(row.get("Tags")), _within_calendar(row["StartTime"]), _size_gib(row)
    return OwnImage("", tags.get(IMAGE_TAG, ""), region, "image gone", since, size, (row["SnapshotId"],), tags)


def start_image(clients: Clients, instance_id: str, name: str, tags: Mapping[str, str]) -> str:
    """Start creating an image from an instance, and return the ID of the pending image. The instance reboots."""
    all_tags = {**tags, IMAGE_TAG: name, "Name": f"cloudgpu-{name}"}
    with convert_response_errors(f"creating a machine image from {instance_id}"):
        image = clients.client("ec2").create_image(
            InstanceId=instance_id,
            Name=f"cloudgpu-{name}",
            Description=f"cloudgpu image {name}",
            TagSpecifications=[tag_specification(kind, all_tags) for kind in ("image", "snapshot")],
        )
        return str(image["ImageId"])


def wait_for_image(clients: Clients, clock: Clock, name: str) -> OwnImage:
    """Wait until the image is available, and return it."""

    def look() -> OwnImage | None:
        for image in find_images(clients, name):
            if image.state == "available":
                return image
            if image.state in ("failed", "error", "invalid"):
                message = f"AWS could not create the image {name} ({image.id} is {image.state})"
                delete = command("cloudgpu", "image", "delete", name)
                raise CloudError(message, code="ImageFailed", hint=f"run `{delete}`, then bake the image again")
        return None

    return poll(clock, look, what=f"image {name} to become available", total_s=_READY_S)


def delete_image(clients: Clients, image: OwnImage) -> None:
    """Delete an image and then its snapshots. Idempotent."""
    ec2 = clients.client("ec2")
    # AWS refuses to delete a snapshot while an image uses it, so deregister the image first. If the deletion is
    # interrupted, the snapshots can still be found by their tag.
    if image.id:
        _unless_gone(lambda: ec2.deregister_image(ImageId=image.id), f"deregistering image {image.id}")
    errors: list[CloudGpuError] = []
    for snapshot in image.snapshots:
        try:
            _unless_gone(
                lambda snapshot_id=snapshot: ec2.delete_snapshot(SnapshotId=snapshot_id),
                f"deleting snapshot {snapshot}",
            )
        except CloudGpuError as err:
            errors.append(err)
    if errors:
        raise errors[0]


def _unless_gone(call: Any, doing: str) -> None:  # noqa: ANN401 - a boto3 call
    try:
        with convert_errors(doing):
            call()
    except CloudGpuError as err:
        if not is_gone(err) and getattr(err, "code", "") != _DEREGISTERED:
            raise


def _images(region: str, response: Mapping[str, Any]) -> Iterator[OwnImage]:
    for row in response["Images"]:
        disks = [mapping["Ebs"] for mapping in row.get("BlockDeviceMappings") or () if "Ebs" in mapping]
        tags = tags_to_dict(row.get("Tags"))
        yield OwnImage(
            id=row["ImageId"],
            name=tags.get(IMAGE_TAG, ""),
            region=region,
            state=str(row.get("State", "")),
            made_at=_utc(str(row.get("CreationDate", ""))),
            size_gib=sum(_size_gib(disk) for disk in disks),
            snapshots=tuple(str(disk["SnapshotId"]) for disk in disks if disk.get("SnapshotId")),
            tags=tags,
        )


def _utc(text: str) -> datetime:
    try:
        return bounds.parse_time(text)
    except ValueError:
        return _UNKNOWN


def _within_calendar(at: datetime) -> datetime:
    try:
        return bounds.to_utc(at)
    except ValueError:
        return _UNKNOWN


def _size_gib(row: Mapping[str, Any]) -> int:
    return bounds.checked_count(row.get("VolumeSize") or 0, 0, bounds.MAX_VOLUME_GIB)
