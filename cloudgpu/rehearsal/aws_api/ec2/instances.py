"""RunInstances and the other calls that change the state of instances, with their moto instances and node records."""

import base64
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from moto.core.types import Base64EncodedString
from moto.core.utils import camelcase_to_underscores
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.models import elastic_network_interfaces

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules
from cloudgpu.rehearsal.aws_api.ec2 import images, launch_validation, placement_groups
from cloudgpu.rehearsal.aws_api.ec2.capacity import launchable_count
from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest, merge_template
from cloudgpu.rehearsal.aws_api.ec2.launch_validation import validate_launch
from cloudgpu.rehearsal.aws_api.records import NodeRecord

RULES = Rules()
_CARD_STEP = 1000
_EFA = ("efa", "efa-only")
_DEFAULT_TYPE = "m1.small"
"""Type of an instance for which neither the request nor its template names one (EC2 API reference, RunInstances)."""
STATE_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}


@dataclass(frozen=True)
class Origin:
    """The origin of a launch: the client token and, for a fleet, the fleet's id."""

    client_token: str = ""
    fleet_id: str = ""


class _CardAwareAttachment(elastic_network_interfaces.Attachment):
    """An attachment that reports the network card index; moto always reports 0."""

    def __init__(self, eni: Any) -> None:  # noqa: ANN401
        super().__init__(eni)
        self.network_card_index = getattr(eni, "network_card_index", 0)


vars(elastic_network_interfaces)["Attachment"] = _CardAwareAttachment


def launch(call: ParsedRequest, request: MergedLaunchRequest, count: int, origin: Origin) -> Any:  # noqa: ANN401 - moto's reservation
    """Create `count` pending instances and start their nodes."""
    reservation = call.backend.run_instances(
        str(request.data["ImageId"]),
        count,
        _user_data(request),
        [],
        **_moto_arguments(call, request, origin),
    )
    for instance in reservation.instances:
        _finish(call, request, instance, origin)
    call.world.keeper.boot(call.region, [instance.id for instance in reservation.instances])
    return reservation


def _user_data(request: MergedLaunchRequest) -> Base64EncodedString | None:
    text = base64.b64encode(request.user_data).decode()
    return Base64EncodedString(text) if text else None


def _moto_arguments(call: ParsedRequest, request: MergedLaunchRequest, origin: Origin) -> dict[str, Any]:
    data = request.data
    return {
        "instance_type": request.instance_type,
        "is_instance_type_default": False,
        "region_name": call.region,
        "subnet_id": request.subnet_id,
        "key_name": data.get("KeyName"),
        "security_group_ids": list(request.group_ids),
        "nics": [_moto_interface(row, request.subnet_id) for row in request.interfaces],
        "private_ip": data.get("PrivateIpAddress"),
        # AWS does not assign a public address to an instance with several interfaces, even if the subnet requests one.
        "associate_public_ip": False if len(request.interfaces) > 1 else None,
        "tags": {kind: request.tags(kind) for kind in ("instance", "volume")},
        "ebs_optimized": bool(data.get("EbsOptimized")),
        "disable_api_stop": bool(data.get("DisableApiStop")),
        "disable_api_termination": bool(data.get("DisableApiTermination")),
        "lifecycle": "spot" if request.market == "spot" else None,
        "instance_initiated_shutdown_behavior": data.get("InstanceInitiatedShutdownBehavior") or "stop",
        "monitoring_state": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled",
        "metadata_options": dict(data.get("MetadataOptions") or {}),
        "client_token": origin.client_token,
        "block_device_mappings": _devices(call, request),
    }


def _moto_interface(row: dict[str, Any], subnet_id: str) -> dict[str, Any]:
    """Return the interface in moto's format; moto identifies interfaces by device index alone.

    Each network card therefore gets a separate range of device indexes.
    """
    card, device = int(row.get("NetworkCardIndex") or 0), int(row.get("DeviceIndex") or 0)
    members = {name: value for name, value in row.items() if name not in ("NetworkCardIndex", "InterfaceType")}
    members.setdefault("DeleteOnTermination", True)
    return {**members, "DeviceIndex": card * _CARD_STEP + device, "SubnetId": row.get("SubnetId") or subnet_id}


def _devices(call: ParsedRequest, request: MergedLaunchRequest) -> list[dict[str, Any]]:
    """Return the image's root device merged with the request's block device mappings."""
    ami = call.backend.amis[request.data["ImageId"]]
    root_gib = images.root_snapshot(ami)[1]
    devices: dict[str, dict[str, Any]] = {ami.root_device_name: {"VolumeSize": root_gib, "VolumeType": "gp3"}}
    for row in request.data.get("BlockDeviceMappings") or []:
        if row.get("Ebs"):
            devices[row["DeviceName"]] = {**devices.get(row["DeviceName"], {}), **row["Ebs"]}
    return [{"DeviceName": name, "Ebs": _volume(call, ebs)} for name, ebs in devices.items()]


def _volume(call: ParsedRequest, ebs: dict[str, Any]) -> dict[str, Any]:
    encrypted = bool(ebs.get("Encrypted"))
    default_key = f"arn:aws:kms:{call.region}:{call.backend.account_id}:alias/aws/ebs"
    return {
        "VolumeSize": ebs.get("VolumeSize") or 8,
        "VolumeType": ebs.get("VolumeType") or "gp3",
        "SnapshotId": ebs.get("SnapshotId"),
        "Encrypted": encrypted,
        "KmsKeyId": (ebs.get("KmsKeyId") or default_key) if encrypted else None,
        "DeleteOnTermination": ebs.get("DeleteOnTermination", True),
    }


def _finish(call: ParsedRequest, request: MergedLaunchRequest, instance: Any, origin: Origin) -> None:  # noqa: ANN401 - moto's instance
    """Set the attributes, tags and records that moto's launch does not set."""
    instance._state.name, instance._state.code = "pending", 0
    _tag(request, instance, origin)
    _set_volumes(request, instance)
    _set_interfaces(request, instance)
    role = _set_profile(call, request, instance)
    if request.placement_group:
        instance.placement.group_name = placement_groups.find(call, request.placement_group).name
    if request.market == "spot":
        instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
    call.records.nodes[instance.id] = NodeRecord(
        user=images.login_of(call.backend, instance.image_id),
        user_data=request.user_data,
        authorized_keys=_authorized_keys(call, request),
        efa_interfaces=sum(row.get("InterfaceType") in _EFA for row in request.interfaces),
        role=role,
        reservation=request.reservation,
        original_address=str(instance.private_ip),
    )


def _authorized_keys(call: ParsedRequest, request: MergedLaunchRequest) -> tuple[str, ...]:
    """Return the key pair's public key. The node's record stores a copy, because the key pair may be deleted later."""
    pair = call.backend.key_pairs.get(request.data.get("KeyName"))
    return (str(pair.public_key).strip(),) if pair else ()


def _tag(request: MergedLaunchRequest, instance: Any, origin: Origin) -> None:  # noqa: ANN401
    tags: dict[str, str] = {}
    if request.template:
        tags["aws:ec2launchtemplate:id"] = request.template[0]
        tags["aws:ec2launchtemplate:version"] = str(request.template[1])
    if origin.fleet_id:
        tags["aws:ec2:fleet-id"] = origin.fleet_id
    instance.add_tags(tags)
    for interface in instance.nics.values():
        interface.add_tags(request.tags("network-interface"))


def _set_volumes(request: MergedLaunchRequest, instance: Any) -> None:  # noqa: ANN401
    mappings = {row["DeviceName"]: row.get("Ebs") or {} for row in request.data.get("BlockDeviceMappings") or []}
    for name, device in instance.get_block_device_mapping:
        volume = instance.ec2_backend.volumes[device.volume_id]
        volume.snapshot_id = volume.snapshot_id or ""
        if volume.volume_type == "gp3":
            volume.iops = int(mappings.get(name, {}).get("Iops") or 3000)
            volume.throughput = int(mappings.get(name, {}).get("Throughput") or 125)


def _set_interfaces(request: MergedLaunchRequest, instance: Any) -> None:  # noqa: ANN401
    by_index = {
        int(row.get("NetworkCardIndex") or 0) * _CARD_STEP + int(row.get("DeviceIndex") or 0): row
        for row in request.interfaces
    }
    if not instance.security_groups and 0 in instance.nics:
        # EC2 shows the groups of the primary interface as the instance's own.
        instance.security_groups = list(instance.nics[0].group_set)
    for index, interface in instance.nics.items():
        interface.network_card_index, interface.device_index = divmod(index, _CARD_STEP)
        interface.interface_type = by_index.get(index, {}).get("InterfaceType") or "interface"
        if not by_index:
            interface.delete_on_termination = True


def _set_profile(call: ParsedRequest, request: MergedLaunchRequest, instance: Any) -> str:  # noqa: ANN401
    """Attach the instance profile. Return the name of its role, or an empty string."""
    profile = launch_validation.find_instance_profile(call, request)
    if profile is None:
        return ""
    instance.iam_instance_profile = {"Arn": profile.arn, "Id": profile.id}
    return str(profile.roles[0].name) if profile.roles else ""


@RULES.action("RunInstances")
def run_instances(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's reservation
    """Launch up to MaxCount instances in one zone; launch none if there is capacity for fewer than MinCount."""
    minimum, maximum = _counts(call)
    merged = merge_template(call, call.params, call.params.get("LaunchTemplate"))
    request = validate_launch(call, replace(merged, instance_type=merged.instance_type or _DEFAULT_TYPE))
    room = launchable_count(call, request, maximum)
    if room.why is not None and room.count < minimum:
        raise room.why
    if call.params.get("DryRun"):
        raise DryRunClientError
    return launch(call, request, room.count, Origin(client_token=str(call.params.get("ClientToken") or "")))


def _counts(call: ParsedRequest) -> tuple[int, int]:
    minimum, maximum = (int(call.params.get(name) or 0) for name in ("MinCount", "MaxCount"))
    if minimum < 1 or maximum < 1:
        raise AwsError("InvalidParameterValue", "MinCount and MaxCount must be at least 1.")
    if minimum > maximum:
        raise AwsError("InvalidParameterValue", f"MinCount {minimum} must not be greater than MaxCount {maximum}.")
    return minimum, maximum


@RULES.action("TerminateInstances")
def terminate(call: ParsedRequest) -> dict[str, Any]:
    """Return `shutting-down` immediately; nodes are stopped in the background. Idempotent."""
    instances = find(call, call.texts("InstanceIds"))
    for instance in instances:
        # AWS protects an instance whose stop is disabled from termination, too, and says "terminated" in both messages.
        for attribute in ("disableApiTermination", "disableApiStop"):
            _require_unprotected(instance, attribute, "terminated")
    before = {instance.id: str(instance.state) for instance in instances}
    mark_shutting_down(instances, call.world.clock.now())
    start_termination(call, [instance for instance in instances if instance.state == "shutting-down"])
    rows = [_state_change(instance, before[instance.id]) for instance in instances]
    return {"TerminatingInstances": rows}


def mark_shutting_down(instances: Iterable[Any], at: datetime) -> None:
    """Mark instances as shutting down at an API caller's request, with the transition reason that AWS sets."""
    for instance in instances:
        if instance.state not in ("shutting-down", "terminated"):
            set_state(instance, "shutting-down")
            instance._reason = transition_reason(at)


def transition_reason(at: datetime) -> str:
    """Return the StateTransitionReason of an instance that was stopped or terminated through the API."""
    return f"User initiated ({at:%Y-%m-%d %H:%M:%S} GMT)"


def start_termination(call: ParsedRequest, instances: list[Any]) -> None:
    """Stop the nodes of instances that are shutting down; a fault script can delay a termination, as happens on AWS."""
    for instance in instances:
        record = call.records.nodes[instance.id]
        if record.lingers is None:
            record.lingers = call.world.behaviour.now.terminate_looks
            if record.lingers:
                call.world.behaviour.count_affected_call()
    call.world.keeper.end(call.region, [instance.id for instance in instances])


@RULES.action("StopInstances")
def stop(call: ParsedRequest) -> dict[str, Any]:
    """Stop instances: power off their nodes and keep the disks."""
    instances = find(call, call.texts("InstanceIds"))
    for instance in instances:
        _require_unprotected(instance, "disableApiStop", "stopped")
    _require(instances, ("pending", "running", "stopping", "stopped"))
    for instance in instances:
        if instance.state in ("pending", "running"):
            instance._reason = transition_reason(call.world.clock.now())
    rows = [_transition(instance, "stopping", unless=("stopped",)) for instance in instances]
    call.world.keeper.end(call.region, [instance.id for instance in instances if instance.state == "stopping"])
    return {"StoppingInstances": rows}


@RULES.action("StartInstances")
def start(call: ParsedRequest) -> dict[str, Any]:
    """Start stopped instances."""
    instances = find(call, call.texts("InstanceIds"))
    _require(instances, ("stopped", "pending", "running"))
    starting = [instance for instance in instances if instance.state == "stopped"]
    for instance in starting:
        instance._reason = ""
    rows = [_transition(instance, "pending", unless=("pending", "running")) for instance in instances]
    call.world.keeper.boot(call.region, [instance.id for instance in starting])
    return {"StartingInstances": rows}


@RULES.action("RebootInstances")
def reboot(call: ParsedRequest) -> dict[str, Any]:
    """Reboot the nodes of running instances; boot hooks run again."""
    instances = find(call, call.texts("InstanceIds"))
    _require(instances, ("running",))
    call.world.keeper.reboot(call.region, [instance.id for instance in instances])
    return {}


def find(call: ParsedRequest, ids: list[str]) -> list[Any]:
    """Return the instances with these ids."""
    if not ids:
        raise AwsError("MissingParameter", "The request must contain the parameter InstanceId")
    known = {instance.id: instance for instance in call.backend.all_instances()}
    missing = [instance_id for instance_id in ids if instance_id not in known]
    if missing:
        noun, verb = ("ID", "does") if len(missing) == 1 else ("IDs", "do")
        raise AwsError("InvalidInstanceID.NotFound", f"The instance {noun} '{', '.join(missing)}' {verb} not exist")
    return [known[instance_id] for instance_id in ids]


def _require_unprotected(instance: Any, attribute: str, participle: str) -> None:  # noqa: ANN401
    """Reject a call that an attribute of the instance forbids."""
    if getattr(instance, camelcase_to_underscores(attribute)):
        raise AwsError(
            "OperationNotPermitted",
            f"The instance '{instance.id}' may not be {participle}. Modify its '{attribute}' instance attribute and "
            "try again.",
        )


def _require(instances: Iterable[Any], states: tuple[str, ...]) -> None:
    for instance in instances:
        if instance.state not in states:
            raise AwsError(
                "IncorrectInstanceState",
                f"The instance '{instance.id}' is not in a state from which it can be changed: {instance.state}.",
            )


def _transition(instance: Any, state: str, *, unless: tuple[str, ...]) -> dict[str, Any]:  # noqa: ANN401
    before = str(instance.state)
    set_state(instance, before if before in unless else state)
    return _state_change(instance, before)


def _state_change(instance: Any, before: str) -> dict[str, Any]:  # noqa: ANN401
    after = str(instance.state)
    return {
        "InstanceId": instance.id,
        "CurrentState": {"Code": STATE_CODES[after], "Name": after},
        "PreviousState": {"Code": STATE_CODES[before], "Name": before},
    }


def set_state(instance: Any, name: str) -> None:  # noqa: ANN401
    """Set the state of a moto instance."""
    instance._state.name, instance._state.code = name, STATE_CODES[name]
