"""Images made of instances: who may be one, what it is called, and that it takes a moment to be usable.

The disk of the node is not copied, but what its stand-ins remember of installed packages is: a node that boots such an
image finds done what the bootstrap installed there. What else was written to the disk is not in the image.
"""

import hashlib
import re
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.amis import Ami

from cloudgpu.rehearsal.aws_api.rules import AwsError, Call, rule

_NAME = re.compile(r"[A-Za-z0-9()\[\] ./'@_-]{3,128}")
_USABLE = ("running", "stopped", "stopping", "pending")


class MadeAmi(Ami):
    """An image whose snapshot is as large as the disk that it was made of; moto says 15 GiB of every image."""

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        """The root device."""
        ebs = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": int(self.ebs_snapshot.volume.size),
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
        }
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


@rule("CreateImage")
def create_image(call: Call) -> dict[str, str]:
    """An image with its snapshot, both tagged in this call; it becomes available after somebody looked once."""
    name = str(call.params.get("Name") or "")
    if not _NAME.fullmatch(name):
        raise AwsError(
            "InvalidAMIName.Malformed", "AMI names must be between 3 and 128 characters long, of permitted characters"
        )
    taken = next((one.id for one in call.backend.amis.values() if (one.name, one.owner_id) == (name, _me(call))), "")
    if taken:
        raise AwsError("InvalidAMIName.Duplicate", f"AMI name {name} is already in use by AMI {taken}")
    instance = _instance(call, str(call.params.get("InstanceId") or ""))
    source = call.backend.amis.get(instance.image_id)
    ami = MadeAmi(
        call.backend,
        _new_id(call, name),
        instance=instance,
        name=name,
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
    call.world.host.keep_image(str(instance.id), str(ami.id))
    call.backend.amis[ami.id] = ami
    if instance.state == "running" and not call.params.get("NoReboot"):
        call.world.keeper.reboot(call.region, [instance.id])
    return {"ImageId": ami.id}


@rule("DescribeImages")
def describe_images(call: Call) -> Any:  # noqa: ANN401 - moto's answer
    """As moto has it; what was pending is available the next time."""
    answer = call.proceed()
    for ami in call.backend.amis.values():
        if ami.state == "pending":
            ami.state = "available"
    return answer


def _me(call: Call) -> str:
    return str(call.backend.account_id)


def _new_id(call: Call, name: str) -> str:
    """Another one each time, also for the name of an image that is gone."""
    number = len(call.backend.amis) + len(call.backend.deleted_amis)
    return "ami-0" + hashlib.sha256(f"{call.region}:{name}:{number}".encode()).hexdigest()[:16]


def _instance(call: Call, instance_id: str) -> Any:  # noqa: ANN401 - moto's instance
    try:
        instance = call.backend.get_instance(instance_id)
    except EC2ClientError:
        raise AwsError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist") from None
    if instance.state not in _USABLE:
        raise AwsError(
            "IncorrectState",
            f"The instance '{instance_id}' is not in a state from which an image can be made: {instance.state}",
        )
    return instance


def _root_gib(call: Call, instance: Any) -> int:  # noqa: ANN401
    attached = [call.backend.volumes.get(one.volume_id) for one in instance.block_device_mapping.values()]
    return max((int(one.size) for one in attached if one is not None), default=8)
