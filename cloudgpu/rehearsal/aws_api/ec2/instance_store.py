"""Find, update, terminate and remove instances in moto's state. Callers must hold the server's lock."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import StateReason

from cloudgpu.rehearsal.aws_api.ec2 import elastic_ips, instance_types
from cloudgpu.rehearsal.aws_api.ec2.instances import set_state, transition_reason
from cloudgpu.rehearsal.aws_api.ec2.reachability import node_access
from cloudgpu.rehearsal.aws_api.records import NodeRecord, records_of
from cloudgpu.rehearsal.nodes.values import NodeSpec

INSTANCE_INITIATED_SHUTDOWN = "Client.InstanceInitiatedShutdown"
USER_INITIATED_SHUTDOWN = "Client.UserInitiatedShutdown"
SPOT_TERMINATION = "Server.SpotInstanceTermination"
INTERNAL_ERROR = "Server.InternalError"
_TEXTS = {
    INSTANCE_INITIATED_SHUTDOWN: "Instance initiated shutdown",
    USER_INITIATED_SHUTDOWN: "User initiated shutdown",
    SPOT_TERMINATION: "Spot instance termination",
    INTERNAL_ERROR: "Internal error on launch",
    "Client.InternalError": "Client error on launch",
    "Client.InvalidKMSKey.InvalidState": "The KMS key provided is in an incorrect state",
    "Client.VolumeLimitExceeded": "Volume limit exceeded",
}
"""Code of a state reason -> the text that EC2 adds to it, as its users quote it."""


def backends() -> list[Any]:
    """Return the EC2 backend of every region in use."""
    registered: list[Any] = list(ec2_backends.iter_backends())
    return [backend for _, _, backend in registered]


def all_instances() -> Iterator[Any]:
    """Yield every instance in every region, including terminated instances."""
    for backend in backends():
        yield from backend.all_instances()


def find(region: str, instance_id: str) -> tuple[Any, NodeRecord] | None:
    """Return an instance and its record, or None if the instance was removed or its creation was undone."""
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    record = records_of(backend).nodes.get(instance_id)
    return None if record is None else (backend.get_instance(instance_id), record)


def find_in_any_region(instance_id: str) -> Any:  # noqa: ANN401 - moto's instance
    """Return an instance from any region, or None."""
    return next((instance for instance in all_instances() if instance.id == instance_id), None)


def region_of(instance: Any) -> str:  # noqa: ANN401
    """Return the region of an instance."""
    return str(instance.ec2_backend.region_name)


def boot_spec(instance: Any, record: NodeRecord) -> NodeSpec:  # noqa: ANN401
    """Return the spec for booting this instance, and set `record.opened` to the access that the spec grants.

    An instance that has booted before keeps its address.
    """
    name, count, memory_mib = instance_types.gpus(str(instance.instance_type))
    record.opened = node_access(instance.ec2_backend, instance, record.role)
    return NodeSpec(
        instance_id=instance.id,
        instance_type=str(instance.instance_type),
        region=region_of(instance),
        zone=str(instance.placement.zone),
        image_id=str(instance.image_id),
        address=record.address,
        user=record.user,
        authorized_keys=record.authorized_keys,
        user_data=record.user_data,
        gpu=name,
        gpus=count,
        gpu_memory_mib=memory_mib,
        efa_interfaces=record.efa_interfaces,
        spot=instance.lifecycle == "spot",
        ssh_open=record.opened.ssh,
        egress=record.opened.egress,
        role=record.role,
        mountable=record.opened.mountable,
    )


def mark_running(instance: Any, record: NodeRecord, address: str, port: int, host_key: str) -> None:  # noqa: ANN401
    """Record the node's address, port and host key, and mark the instance as running.

    The node's loopback address replaces the instance's private address. It also replaces the public address, unless the
    public address is an Elastic IP.
    """
    record.address, record.port, record.host_key = address, port, host_key
    _readdress(instance, address)
    set_state(instance, "running")


def stop_after_power_off(instance: Any) -> None:  # noqa: ANN401
    """Mark an instance whose node powered itself off as stopping or shutting down, based on its shutdown behavior."""
    terminates = instance.instance_initiated_shutdown_behavior == "terminate"
    set_state(instance, "shutting-down" if terminates else "stopping")
    instance.state_reason = StateReason(
        f"{INSTANCE_INITIATED_SHUTDOWN}: {_TEXTS[INSTANCE_INITIATED_SHUTDOWN]}", INSTANCE_INITIATED_SHUTDOWN
    )
    instance._reason = "User initiated"  # AWS does not report a time for a shutdown from within the instance


def terminate_interrupted(instance: Any) -> None:  # noqa: ANN401
    """Mark an interrupted spot instance as shutting down, regardless of its shutdown behavior."""
    set_state(instance, "shutting-down")
    instance.state_reason = StateReason(f"{SPOT_TERMINATION}: {_TEXTS[SPOT_TERMINATION]}", SPOT_TERMINATION)
    instance._reason = SPOT_TERMINATION


def start_failure_text(code: str) -> str:
    """Return the text that EC2 adds to the state reason of an instance that did not start."""
    return _TEXTS.get(code, "The instance did not start")


def terminate(
    instance: Any,  # noqa: ANN401
    record: NodeRecord,
    now: datetime,
    *,
    failure: str = "",
    code: str = INTERNAL_ERROR,
) -> None:
    """Mark an instance as terminated, and delete its volumes and interfaces that have `DeleteOnTermination` set.

    Args:
        instance: moto's instance.
        record: The record of the instance's node.
        now: The time of the termination.
        failure: Why the instance's node did not start; empty if the instance was terminated for another reason.
        code: Code of the state reason of a node that did not start.
    """
    reason, transition = instance.state_reason, instance._reason
    dependent_ids = [device.volume_id for _, device in instance.get_block_device_mapping]
    dependent_ids += [interface.id for interface in instance.nics.values()]
    _readdress(instance, record.original_address)
    backend = instance.ec2_backend
    for address in [address for address in backend.addresses if address.eni in instance.nics.values()]:
        elastic_ips.detach_address(address)
    instance.terminate()
    for interface in (item for item in instance.nics.values() if item.id in backend.enis):
        _release(interface)
    for deleted_id in (item for item in dependent_ids if item not in backend.volumes and item not in backend.enis):
        backend.tags.pop(deleted_id, None)
    set_state(instance, "terminated")
    instance.state_reason = (
        reason if reason.code in (INSTANCE_INITIATED_SHUTDOWN, SPOT_TERMINATION) else _reason(failure, code)
    )
    # moto records the time of this call, not of the terminating request, and in a different format.
    instance._reason = code if failure else transition or transition_reason(now)
    record.ended = now


def _release(interface: Any) -> None:  # noqa: ANN401 - moto's interface
    """Make an interface that outlives its instance available again; moto leaves it attached."""
    interface.instance = interface.attachment_id = interface.attach_time = None
    interface.status = "available"


def remove_terminated(backend: Any, before: datetime) -> list[str]:  # noqa: ANN401
    """Remove instances that were terminated before this time, and return their ids.

    Instances that were launched together are removed together, once all of them were terminated before this time.
    """
    records = records_of(backend)
    expired = {name for name, record in records.nodes.items() if record.ended is not None and record.ended < before}
    empty_reservations = [
        name for name, row in backend.reservations.items() if all(item.id in expired for item in row.instances)
    ]
    for reservation_id in empty_reservations:
        del backend.reservations[reservation_id]
    removed = sorted(expired - {instance.id for instance in backend.all_instances()})
    for instance_id in removed:
        backend.tags.pop(instance_id, None)
        del records.nodes[instance_id]
    return removed


def _reason(failure: str, code: str) -> StateReason:
    if failure:
        return StateReason(f"{code}: {failure}", code)
    return StateReason(f"{USER_INITIATED_SHUTDOWN}: {_TEXTS[USER_INITIATED_SHUTDOWN]}", USER_INITIATED_SHUTDOWN)


def _readdress(instance: Any, address: str) -> None:  # noqa: ANN401
    primary = instance.nics.get(0)
    if primary is None or not address:
        return
    primary.private_ip_address = address
    for row in primary.private_ip_addresses:
        if row.get("Primary"):
            row["PrivateIpAddress"] = address
    elastic = {elastic_ip.public_ip for elastic_ip in instance.ec2_backend.addresses}
    if primary.public_ip and primary.public_ip not in elastic:
        primary.public_ip = address
