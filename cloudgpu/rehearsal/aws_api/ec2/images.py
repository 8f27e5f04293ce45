"""Machine images: those that public SSM parameters point to, and those created from instances; volumes and snapshots.

The node's disk is not copied. The image only records the installed packages, so that a node booted from the image
has the packages that the bootstrap installed.

Public images have invented but stable IDs, and `(simulated)` in each name.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.amis import Ami

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules
from cloudgpu.rehearsal.server.error_responses import not_found_message

RULES = Rules()
_NAME = re.compile(r"[A-Za-z0-9()\[\] ./'@_-]{3,128}")
_SOURCE_STATES = ("running", "stopped", "stopping", "pending")
_UBUNTU = "/aws/service/canonical/ubuntu/server"
_DLAMI = "/aws/service/deeplearning/ami/x86_64"
_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest"
IMAGE_FOLDERS = (f"{_UBUNTU}/", f"{_DLAMI}/", f"{_AMAZON_LINUX}/", "/aws/service/ecs/optimized-ami/")
"""Folders of Parameter Store in which every parameter describes a machine image.

A parameter in these folders exists only if its image does: moto also has parameters whose images no launch knows.
"""
_DLAMI_GIB = 75
"""Root size in GiB of a GPU image with several CUDA toolkits, as users report it: "expect size >= 75GB"."""
_GP3 = {"size": (1, 65536), "iops": (3000, 80000), "throughput": (125, 2000)}
"""Minimum and maximum of each property, in GiB, IOPS and MiB/s."""


class MadeAmi(Ami):
    """An image that reports the size of its snapshot's volume; moto reports 15 GiB for every image."""

    was_described = False

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The block device mapping of the root device."""
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": int(self.ebs_snapshot.volume.size),
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "Encrypted": bool(self.ebs_snapshot.encrypted),
        }
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


def root_snapshot(ami: Any) -> tuple[str, int]:  # noqa: ANN401 - moto's image
    """Return the ID of the root device's snapshot and its size in GiB."""
    ebs = ami.block_device_mappings[0]["Ebs"]
    return str(ebs["SnapshotId"]), int(ebs["VolumeSize"])


@RULES.action("CreateImage")
def create_image(call: ParsedRequest) -> dict[str, str]:
    """Create an image and its snapshot, with tags. The first DescribeImages call still shows the image as pending."""
    name = str(call.params.get("Name") or "")
    if not _NAME.fullmatch(name):
        raise AwsError(
            "InvalidAMIName.Malformed",
            "AMI names must be between 3 and 128 characters long, and may contain letters, numbers, spaces and "
            "()[]./-'@_",
        )
    taken = next(
        (image.id for image in call.backend.amis.values() if (image.name, image.owner_id) == (name, _account_id(call))),
        "",
    )
    if taken:
        raise AwsError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {taken}")
    instance = _instance(call, str(call.params.get("InstanceId") or ""))
    source = call.backend.amis.get(instance.image_id)
    ami = MadeAmi(
        call.backend,
        _new_id(call, name),
        instance=instance,
        name=name,
        image_location=f"{_account_id(call)}/{name}",
        description=str(call.params.get("Description") or ""),
        state="pending",
        root_device_type="ebs",
        root_device_name=source.root_device_name if source else "/dev/sda1",
        hypervisor="xen",
        region_name=f"{call.region}a",
        snapshot_description=f"Created by CreateImage({instance.id})",
        tags=call.tags_for("image"),
    )
    ami.ebs_snapshot.volume.size = _root_gib(call, instance)
    ami.ebs_snapshot.add_tags(call.tags_for("snapshot"))
    call.world.host.record_image_packages(str(instance.id), str(ami.id))
    call.backend.amis[ami.id] = ami
    if instance.state == "running" and not call.params.get("NoReboot"):
        call.world.keeper.reboot(call.region, [instance.id])
    return {"ImageId": ami.id}


@RULES.action("DescribeImages")
def describe_images(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Describe images as moto does. An image is pending in the first call after its creation, then available."""
    for ami in [ami for ami in call.backend.amis.values() if ami.state == "pending"]:
        if ami.was_described:
            ami.state = "available"
        ami.was_described = True
    response = call.proceed()
    if call.params.get("ImageIds") or call.params.get("IncludeDeprecated"):
        return response
    now = f"{call.world.clock.now():%Y-%m-%dT%H:%M:%S}"
    listed = [ami for ami in response.result["Images"] if not _is_hidden(call, ami, now)]
    return ActionResult({**response.result, "Images": listed})


def _is_hidden(call: ParsedRequest, ami: Any, now: str) -> bool:  # noqa: ANN401 - moto's image
    """Return True if a listing omits the image: it is deprecated, and another account owns it."""
    deprecated_at = str(getattr(ami, "deprecation_time", ""))
    return "" < deprecated_at <= now and ami.owner_id != _account_id(call)


def _account_id(call: ParsedRequest) -> str:
    return str(call.backend.account_id)


def _new_id(call: ParsedRequest, name: str) -> str:
    """Return an image ID that is unique even if a deleted image had the same name."""
    number = len(call.backend.amis) + len(call.backend.deleted_amis)
    return "ami-0" + hashlib.sha256(f"{call.region}:{name}:{number}".encode()).hexdigest()[:16]


def _instance(call: ParsedRequest, instance_id: str) -> Any:  # noqa: ANN401 - moto's instance
    try:
        instance = call.backend.get_instance(instance_id)
    except EC2ClientError:
        raise AwsError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist") from None
    if instance.state not in _SOURCE_STATES:
        raise AwsError(
            "IncorrectState",
            f"The instance '{instance_id}' is not in a state from which an image can be created: {instance.state}",
        )
    return instance


def _root_gib(call: ParsedRequest, instance: Any) -> int:  # noqa: ANN401
    attached = [call.backend.volumes.get(mapping.volume_id) for mapping in instance.block_device_mapping.values()]
    return max((int(volume.size) for volume in attached if volume is not None), default=8)


_CANONICAL, _AMAZON, _LINUX_TEAM = "099720109477", "898082745236", "137112412989"


@dataclass(frozen=True)
class PublicImage:
    """An image and the SSM parameter that contains its id."""

    parameter: str
    name: str
    owner: str
    user: str
    root_device: str = "/dev/sda1"
    architecture: str = "x86_64"
    root_gib: int = 8
    """Size of the root device's snapshot in GiB."""
    deprecated_at: str = ""
    """Time from which AWS lists the image only by its ID; empty if there is none."""

    def ami_id(self, region: str) -> str:
        """Return the image id, which is different in every region, as on AWS, but the same in every rehearsal cloud."""
        return "ami-0" + hashlib.sha256(f"{region}:{self.name}".encode()).hexdigest()[:16]


def _ubuntu(release: str, code: str, volume: str) -> PublicImage:
    return PublicImage(
        f"{_UBUNTU}/{release}/stable/current/amd64/hvm/ebs-{volume}/ami-id",
        f"ubuntu/images/hvm-ssd/ubuntu-{code}-{release}-amd64-server (simulated)",
        _CANONICAL,
        "ubuntu",
    )


def _dlami(folder: str, title: str, user: str = "ubuntu") -> PublicImage:
    root = "/dev/sda1" if user == "ubuntu" else "/dev/xvda"
    return PublicImage(
        f"{_DLAMI}/{folder}/latest/ami-id", f"{title} (simulated)", _AMAZON, user, root, root_gib=_DLAMI_GIB
    )


def _amazon_linux(name: str, architecture: str = "x86_64") -> PublicImage:
    parameter = f"{_AMAZON_LINUX}/{name}"
    return PublicImage(parameter, f"{name} (simulated)", _LINUX_TEAM, "ec2-user", "/dev/xvda", architecture)


PUBLIC_IMAGES = (
    _ubuntu("22.04", "jammy", "gp2"),
    _ubuntu("22.04", "jammy", "gp3"),
    _ubuntu("24.04", "noble", "gp2"),
    _ubuntu("24.04", "noble", "gp3"),
    PublicImage(
        "",  # parameters point to newer images
        "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20220420 (simulated)",
        _CANONICAL,
        "ubuntu",
        deprecated_at="2024-04-20T00:00:00.000Z",
    ),
    _dlami("base-oss-nvidia-driver-gpu-ubuntu-22.04", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)"),
    _dlami("base-oss-nvidia-driver-gpu-ubuntu-24.04", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)"),
    _dlami(
        "base-oss-nvidia-driver-gpu-amazon-linux-2023",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023)",
        "ec2-user",
    ),
    _dlami(
        "oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04",
        "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.7 (Ubuntu 22.04)",
    ),
    *(
        _amazon_linux(f"al2023-ami-kernel-{kernel}-{architecture}", architecture)
        for kernel in ("default", "6.1", "6.12")
        for architecture in ("x86_64", "arm64")
    ),
    _amazon_linux("amzn2-ami-hvm-x86_64-gp2"),
    _amazon_linux("amzn2-ami-kernel-5.10-hvm-x86_64-gp2"),
)
_BY_PARAMETER = {image.parameter: image for image in PUBLIC_IMAGES if image.parameter}


def ami_of_parameter(name: str, region: str) -> str | None:
    """Return the image id that a public parameter has in this region, or None if the parameter is unknown."""
    image = _BY_PARAMETER.get(name)
    return image.ami_id(region) if image else None


def register(backend: Any) -> None:  # noqa: ANN401 - moto is untyped
    """Add the public images to a region's EC2 backend. Idempotent."""
    for image in PUBLIC_IMAGES:
        ami_id = image.ami_id(backend.region_name)
        if ami_id not in backend.amis:
            backend.amis[ami_id] = _ami(backend, image, ami_id)


def login_of(backend: Any, ami_id: str) -> str:  # noqa: ANN401
    """Return the login user of a public image, or `ubuntu` for any other image."""
    for image in PUBLIC_IMAGES:
        if image.ami_id(backend.region_name) == ami_id:
            return image.user
    return "ubuntu"


def _ami(backend: Any, image: PublicImage, ami_id: str) -> MadeAmi:  # noqa: ANN401
    ami = MadeAmi(
        backend,
        ami_id,
        name=image.name,
        image_location=f"{image.owner}/{image.name}",
        description="simulated by the rehearsal cloud",
        owner_id=image.owner,
        public=True,
        virtualization_type="hvm",
        architecture=image.architecture,
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name=image.root_device,
        region_name=f"{backend.region_name}a",
        boot_mode="uefi-preferred",
    )
    ami.ebs_snapshot.volume.size = image.root_gib
    if image.deprecated_at:
        vars(ami)["deprecation_time"] = image.deprecated_at
    return ami


@RULES.action("CreateVolume")
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


@RULES.action("DescribeSnapshots")
def describe_snapshots(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Describe snapshots; reject ids that do not exist by name, which moto does not name."""
    missing = [snapshot_id for snapshot_id in call.texts("SnapshotIds") if snapshot_id not in call.backend.snapshots]
    if missing:
        raise _missing_snapshot(missing)
    return call.proceed()


@RULES.action("DeleteSnapshot")
def delete_snapshot(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a snapshot; reject an id that does not exist by name, which moto does not name."""
    snapshot_id = str(call.params.get("SnapshotId") or "")
    if snapshot_id not in call.backend.snapshots:
        raise _missing_snapshot([snapshot_id])
    return call.proceed()


@RULES.action("AttachVolume")
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
