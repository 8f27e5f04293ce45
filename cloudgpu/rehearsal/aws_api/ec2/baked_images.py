"""Images created from instances: validation, IDs, and the change from `pending` to `available`.

The node's disk is not copied. The image only records the installed packages, so that a node booted from the image
has the packages that the bootstrap installed.
"""

import hashlib
import re
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.amis import Ami

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_NAME = re.compile(r"[A-Za-z0-9()\[\] ./'@_-]{3,128}")
_SOURCE_STATES = ("running", "stopped", "stopping", "pending")


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


@rule("CreateImage")
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


@rule("DescribeImages")
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
