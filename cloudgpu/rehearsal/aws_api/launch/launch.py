"""Create moto instances and node records from validated launch requests."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.models import elastic_network_interfaces

from cloudgpu.rehearsal.aws_api.ec2 import baked_images, public_images
from cloudgpu.rehearsal.aws_api.launch import placement_groups, validation
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.rules import ParsedRequest
from cloudgpu.rehearsal.state.records import NodeRecord

_CARD_STEP = 1000
_EFA = ("efa", "efa-only")


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
    root_gib = baked_images.root_snapshot(ami)[1]
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
        user=public_images.login_of(call.backend, instance.image_id),
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
    profile = validation.find_instance_profile(call, request)
    if profile is None:
        return ""
    instance.iam_instance_profile = {"Arn": profile.arn, "Id": profile.id}
    return str(profile.roles[0].name) if profile.roles else ""
