"""Attach a volume to an instance."""

from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import poll
from cloudgpu.clock import Clock
from cloudgpu.errors import BusyError, CloudError

_START_S = 300
"""Time limit in seconds for an instance to start running. A volume cannot be attached to a pending instance."""
_LETTERS = "fghijklmnop"
"""Letters of the device names `/dev/sdf` to `/dev/sdp`, which AWS recommends for data volumes."""


def attach(clients: Clients, clock: Clock, volume_id: str, instance_id: str, number: int) -> None:
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
