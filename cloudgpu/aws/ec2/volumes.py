"""Attach a volume to an instance."""

from cloudgpu.aws.session.errors import typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited
from cloudgpu.clock import Clock
from cloudgpu.errors import BusyError, CloudError

_RUNS_S = 300
"""How long an instance may take to run; a volume cannot be attached before."""
_LETTERS = "fghijklmnop"
"""`/dev/sdf` to `/dev/sdp`: what AWS recommends for volumes beside the root disk."""


def attach(clients: Clients, clock: Clock, volume_id: str, instance_id: str, number: int) -> None:
    """Attach a volume as the disk of that `number` (from 0) of an instance; one attached to it already is left alone.

    Raises:
        BusyError: It is attached to another instance.
        CloudError: AWS refused, or the instance does not come to run.
    """
    there = _attached_to(clients, volume_id)
    if there == instance_id:
        return
    if there:
        message = f"volume {volume_id} is attached to {there}"
        raise BusyError(message, hint="delete that cluster first: `cloudgpu down CLUSTER`")
    awaited(clock, lambda: _runs(clients, instance_id) or None, what=f"{instance_id} to run", total_s=_RUNS_S)
    with typed(f"attaching {volume_id} to {instance_id}"):
        device = f"/dev/sd{_LETTERS[number % len(_LETTERS)]}"
        clients.client("ec2").attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device=device)


def _attached_to(clients: Clients, volume_id: str) -> str:
    with typed(f"looking at {volume_id}"):
        (volume,) = clients.client("ec2").describe_volumes(VolumeIds=[volume_id])["Volumes"]
    return next((str(attachment["InstanceId"]) for attachment in volume.get("Attachments") or ()), "")


def _runs(clients: Clients, instance_id: str) -> bool:
    """Return True if the instance is running.

    Raises:
        CloudError: The instance has terminated and will never run.
    """
    with typed(f"looking at {instance_id}"):
        answer = clients.client("ec2").describe_instances(InstanceIds=[instance_id])
    (state,) = [str(instance["State"]["Name"]) for row in answer["Reservations"] for instance in row["Instances"]]
    if state not in ("pending", "running"):
        message = f"instance {instance_id} is {state} before its storage could be attached"
        raise CloudError(
            message, hint="run `cloudgpu up` again: the instance is replaced, and the storage is unchanged"
        )
    return state == "running"
