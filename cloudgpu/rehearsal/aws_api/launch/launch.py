"""Create validated instances in moto, with records of their nodes."""

import base64
import secrets
from dataclasses import dataclass
from typing import Any

from moto.core.types import Base64EncodedString
from moto.ec2.models import elastic_network_interfaces

from cloudgpu.rehearsal.aws_api.ec2 import public_images
from cloudgpu.rehearsal.aws_api.launch import placement_groups, validation
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.rules import ParsedRequest
from cloudgpu.rehearsal.state.records import NodeRecord

_CARD_STEP = 1000
_EFA = ("efa", "efa-only")


@dataclass(frozen=True)
class Origin:
    """Origin of a launch: its client token, and its fleet if it has one."""

    client_token: str = ""
    fleet_id: str = ""


class _CardAwareAttachment(elastic_network_interfaces.Attachment):
    """Reports the network card; moto always reports 0."""

    def __init__(self, eni: Any) -> None:  # noqa: ANN401
        super().__init__(eni)
        self.network_card_index = getattr(eni, "network_card_index", 0)


vars(elastic_network_interfaces)["Attachment"] = _CardAwareAttachment


def launch(call: ParsedRequest, wanted: MergedLaunchRequest, count: int, origin: Origin) -> Any:  # noqa: ANN401 - moto's reservation
    """Create `count` pending instances and start their nodes."""
    reservation = call.backend.run_instances(
        str(wanted.data["ImageId"]),
        count,
        _user_data(wanted),
        [],
        **_moto_arguments(call, wanted, origin),
    )
    for instance in reservation.instances:
        _finish(call, wanted, instance, origin)
    call.world.keeper.boot(call.region, [instance.id for instance in reservation.instances])
    return reservation


def _user_data(wanted: MergedLaunchRequest) -> Base64EncodedString | None:
    text = base64.b64encode(wanted.user_data).decode()
    return Base64EncodedString(text) if text else None


def _moto_arguments(call: ParsedRequest, wanted: MergedLaunchRequest, origin: Origin) -> dict[str, Any]:
    data = wanted.data
    return {
        "instance_type": wanted.instance_type,
        "is_instance_type_default": False,
        "region_name": call.region,
        "subnet_id": wanted.subnet_id,
        "key_name": data.get("KeyName"),
        "security_group_ids": list(wanted.group_ids),
        "nics": [_moto_interface(row, wanted.subnet_id) for row in wanted.interfaces],
        "private_ip": data.get("PrivateIpAddress"),
        # With several interfaces AWS assigns no public address, regardless of the subnet.
        "associate_public_ip": False if len(wanted.interfaces) > 1 else None,
        "tags": {kind: wanted.tags(kind) for kind in ("instance", "volume")},
        "ebs_optimized": bool(data.get("EbsOptimized")),
        "disable_api_stop": bool(data.get("DisableApiStop")),
        "disable_api_termination": bool(data.get("DisableApiTermination")),
        "lifecycle": "spot" if wanted.market == "spot" else None,
        "instance_initiated_shutdown_behavior": data.get("InstanceInitiatedShutdownBehavior") or "stop",
        "monitoring_state": "enabled" if (data.get("Monitoring") or {}).get("Enabled") else "disabled",
        "metadata_options": dict(data.get("MetadataOptions") or {}),
        "client_token": origin.client_token,
        "block_device_mappings": _devices(call, wanted),
    }


def _moto_interface(row: dict[str, Any], subnet_id: str) -> dict[str, Any]:
    """Map a network card to its own range of device indexes, as moto identifies interfaces by device index."""
    card, device = int(row.get("NetworkCardIndex") or 0), int(row.get("DeviceIndex") or 0)
    kept = {name: value for name, value in row.items() if name not in ("NetworkCardIndex", "InterfaceType")}
    kept.setdefault("DeleteOnTermination", True)
    return {**kept, "DeviceIndex": card * _CARD_STEP + device, "SubnetId": row.get("SubnetId") or subnet_id}


def _devices(call: ParsedRequest, wanted: MergedLaunchRequest) -> list[dict[str, Any]]:
    """Return the image's root device merged with the mappings of the request."""
    root = call.backend.amis[wanted.data["ImageId"]].root_device_name
    devices: dict[str, dict[str, Any]] = {root: {"VolumeSize": 8, "VolumeType": "gp3"}}
    for row in wanted.data.get("BlockDeviceMappings") or []:
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


def _finish(call: ParsedRequest, wanted: MergedLaunchRequest, instance: Any, origin: Origin) -> None:  # noqa: ANN401 - moto's instance
    """Set what moto's own launch leaves out."""
    instance._state.name, instance._state.code = "pending", 0
    _tag(wanted, instance, origin)
    _set_volumes(wanted, instance)
    _set_interfaces(wanted, instance)
    role = _set_profile(call, wanted, instance)
    if wanted.placement_group:
        instance.placement.group_name = placement_groups.find(call, wanted.placement_group).name
    if wanted.market == "spot":
        instance.spot_instance_request_id = f"sir-{secrets.token_hex(4)}"
    call.records.nodes[instance.id] = NodeRecord(
        instance_id=instance.id,
        user=public_images.login_of(call.backend, instance.image_id),
        user_data=wanted.user_data,
        authorized_keys=_authorized_keys(call, wanted),
        efa_interfaces=sum(row.get("InterfaceType") in _EFA for row in wanted.interfaces),
        role=role,
        placement_group=instance.placement.group_name,
        fleet_id=origin.fleet_id,
        reservation=wanted.reservation,
        original_address=str(instance.private_ip),
    )


def _authorized_keys(call: ParsedRequest, wanted: MergedLaunchRequest) -> tuple[str, ...]:
    """Return the public key at launch, so that deleting the key pair later does not affect the instance."""
    pair = call.backend.key_pairs.get(wanted.data.get("KeyName"))
    return (str(pair.public_key).strip(),) if pair else ()


def _tag(wanted: MergedLaunchRequest, instance: Any, origin: Origin) -> None:  # noqa: ANN401
    tags: dict[str, str] = {}
    if wanted.template:
        tags["aws:ec2launchtemplate:id"] = wanted.template[0]
        tags["aws:ec2launchtemplate:version"] = str(wanted.template[1])
    if origin.fleet_id:
        tags["aws:ec2:fleet-id"] = origin.fleet_id
    instance.add_tags(tags)
    for interface in instance.nics.values():
        interface.add_tags(wanted.tags("network-interface"))


def _set_volumes(wanted: MergedLaunchRequest, instance: Any) -> None:  # noqa: ANN401
    asked = {row["DeviceName"]: row.get("Ebs") or {} for row in wanted.data.get("BlockDeviceMappings") or []}
    for name, device in instance.get_block_device_mapping:
        volume = instance.ec2_backend.volumes[device.volume_id]
        if volume.volume_type == "gp3":
            volume.iops = int(asked.get(name, {}).get("Iops") or 3000)
            volume.throughput = int(asked.get(name, {}).get("Throughput") or 125)


def _set_interfaces(wanted: MergedLaunchRequest, instance: Any) -> None:  # noqa: ANN401
    by_place = {
        int(row.get("NetworkCardIndex") or 0) * _CARD_STEP + int(row.get("DeviceIndex") or 0): row
        for row in wanted.interfaces
    }
    for place, interface in instance.nics.items():
        interface.network_card_index, interface.device_index = divmod(place, _CARD_STEP)
        interface.interface_type = by_place.get(place, {}).get("InterfaceType") or "interface"
        if not by_place:
            interface.delete_on_termination = True


def _set_profile(call: ParsedRequest, wanted: MergedLaunchRequest, instance: Any) -> str:  # noqa: ANN401
    """Attach the instance profile. Return the name of its role."""
    found = validation.profile(call, wanted)
    if found is None:
        return ""
    instance.iam_instance_profile = {"Arn": found.arn, "Id": found.id}
    return str(found.roles[0].name) if found.roles else ""
