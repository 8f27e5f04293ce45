"""Validate launch requests, running the checks in the same order as AWS."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest
from cloudgpu.rehearsal.aws_api.ec2 import images, instance_types, placement_groups
from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest

_AMI_ID = re.compile(r"ami-[0-9a-f]{8}([0-9a-f]{9})?$")
_EFA = ("efa", "efa-only")


def validate_launch(call: ParsedRequest, request: MergedLaunchRequest) -> MergedLaunchRequest:
    """Validate a launch request and choose its zone and subnet."""
    description = _describe_type(call, request)
    _check_image(call, request, description)
    _check_key(call, request)
    placed = _place(call, request)
    instance_types.require_zone(call.region, placed.instance_type, placed.zone)
    _check_groups(call, placed)
    _check_interfaces(placed, description)
    _check_group_name(call, placed)
    _check_root_disk(call, placed)
    _check_profile(call, placed)
    _ = placed.user_data
    return placed


def find_instance_profile(call: ParsedRequest, request: MergedLaunchRequest) -> Any:  # noqa: ANN401 - moto's instance profile
    """Return the requested instance profile, or None if the request has none."""
    specification = request.data.get("IamInstanceProfile") or {}
    name, arn = specification.get("Name"), specification.get("Arn")
    if not (name or arn):
        return None
    try:
        match = filter_iam_instance_profiles(call.backend.account_id, "aws", arn, name)
    except NotFoundException:
        match = None
    if match is None:
        key, value = ("Name", name) if name else ("ARN", arn)
        raise AwsError("InvalidParameterValue", f"Value ({value}) for parameter iamInstanceProfile.{key.lower()} is "
                       f"invalid. Invalid IAM Instance Profile {key}")  # fmt: skip
    return match


def _check_profile(call: ParsedRequest, request: MergedLaunchRequest) -> None:
    """Reject a new instance profile that is not visible to EC2 yet."""
    requested = find_instance_profile(call, request)
    if requested is not None and call.world.behaviour.is_profile_unknown(
        str(requested.id), requested.create_date.replace(tzinfo=UTC)
    ):
        raise AwsError("InvalidParameterValue", f"Value ({requested.name}) for parameter iamInstanceProfile.name is "
                       "invalid. Invalid IAM Instance Profile name")  # fmt: skip


def _describe_type(call: ParsedRequest, request: MergedLaunchRequest) -> dict[str, Any]:
    if not request.instance_type:
        raise AwsError("MissingParameter", "The request must contain the parameter InstanceType")
    return instance_types.require_type(call, request.instance_type)


def _check_image(call: ParsedRequest, request: MergedLaunchRequest, description: Mapping[str, Any]) -> None:
    image_id = str(request.data.get("ImageId") or "")
    if not image_id:
        raise AwsError("MissingParameter", "The request must contain the parameter ImageId")
    if not _AMI_ID.match(image_id):
        raise AwsError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
    if image_id not in call.backend.amis:
        raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    required = str(call.backend.amis[image_id].architecture or "x86_64")
    supported = [str(name) for name in (description.get("ProcessorInfo") or {}).get("SupportedArchitectures") or []]
    if supported and required not in supported:
        # Wording: github.com/skypilot-org/skypilot issue 6315, github.com/aws/eks-anywhere-build-tooling PR 2158.
        raise AwsError(
            "InvalidParameterValue",
            f"The architecture '{supported[-1]}' of the specified instance type does not match the architecture "
            f"'{required}' of the specified AMI. Specify an instance type and an AMI that have matching "
            "architectures, and try again. You can use 'describe-instance-types' or 'describe-images' to discover "
            "the architecture of the instance type or AMI.",
        )


def _check_root_disk(call: ParsedRequest, request: MergedLaunchRequest) -> None:
    """Reject a root disk that is smaller than the snapshot of the image, in the words that AWS's users report."""
    ami = call.backend.amis[str(request.data["ImageId"])]
    snapshot_id, needed_gib = images.root_snapshot(ami)
    for row in request.data.get("BlockDeviceMappings") or []:
        size_gib = int((row.get("Ebs") or {}).get("VolumeSize") or needed_gib)
        if row.get("DeviceName") == ami.root_device_name and size_gib < needed_gib:
            message = f"Volume of size {size_gib}GB is smaller than snapshot '{snapshot_id}', "
            raise AwsError("InvalidBlockDeviceMapping", f"{message}expect size >= {needed_gib}GB")


def _check_key(call: ParsedRequest, request: MergedLaunchRequest) -> None:
    name = request.data.get("KeyName")
    if name and name not in call.backend.key_pairs:
        raise AwsError("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")


def _place(call: ParsedRequest, request: MergedLaunchRequest) -> MergedLaunchRequest:
    """Choose the subnet and zone; by default, the first zone that offers the type and has a default subnet."""
    if request.subnet_id:
        subnet = _subnet(call, request.subnet_id)
        if request.zone and request.zone != subnet.availability_zone:
            raise AwsError(
                "InvalidParameterValue", f"The subnet {subnet.id} is not in the Availability Zone {request.zone}."
            )
        return replace(request, zone=str(subnet.availability_zone))
    defaults: Mapping[str, Any] = call.backend.get_default_subnets() or {}
    zones = (request.zone,) if request.zone else instance_types.zones_by_type(call.region)[request.instance_type]
    for zone in zones:
        if zone in defaults:
            return replace(request, zone=zone, subnet_id=str(defaults[zone].id))
    if request.zone and all(zone.name != request.zone for zone in call.backend.describe_availability_zones()):
        raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{request.zone}]")
    raise AwsError("MissingInput", "No subnets found for the default VPC. Please specify a subnet.")


def _subnet(call: ParsedRequest, subnet_id: str) -> Any:  # noqa: ANN401 - moto's subnet
    try:
        return call.backend.get_subnet(subnet_id)
    except EC2ClientError:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist") from None


def _check_groups(call: ParsedRequest, request: MergedLaunchRequest) -> None:
    ids = list(request.group_ids)
    for row in request.interfaces:
        ids += [str(value) for value in row.get("Groups") or []]
    vpc_id = _subnet(call, request.subnet_id).vpc_id
    for group_id in ids:
        group = call.backend.get_security_group_from_id(group_id)
        if group is None:
            raise AwsError("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
        if group.vpc_id != vpc_id:
            raise AwsError(
                "InvalidParameter",
                f"Security group {group_id} and subnet {request.subnet_id} belong to different networks.",
            )


def _check_interfaces(request: MergedLaunchRequest, description: Mapping[str, Any]) -> None:
    rows = request.interfaces
    if rows and (request.group_ids or request.data.get("SubnetId")):
        raise AwsError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID or security groups may not be specified on the same "
            "request",
        )
    if len(rows) > 1 and any(row.get("AssociatePublicIpAddress") for row in rows):
        raise AwsError(
            "InvalidParameterCombination",
            "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
            "interfaces.",
        )
    _check_cards(rows, description)
    _check_efa(request, rows, description)


def _check_cards(rows: list[dict[str, Any]], description: Mapping[str, Any]) -> None:
    network = description.get("NetworkInfo", {})
    indexes = [(int(row.get("NetworkCardIndex") or 0), int(row.get("DeviceIndex") or 0)) for row in rows]
    if len(set(indexes)) != len(indexes):
        raise AwsError("InvalidParameterValue", "Each network interface requires a unique device index.")
    if indexes and (0, 0) not in indexes:
        raise AwsError("InvalidParameterCombination", "A primary network interface (device index 0) is required.")
    kinds = {place: row.get("InterfaceType") for place, row in zip(indexes, rows, strict=True)}
    if kinds.get((0, 0)) == "efa-only":
        raise AwsError("InvalidParameterCombination", "The primary network interface cannot be EFA-only.")
    if any(card >= int(network.get("MaximumNetworkCards", 1)) for card, _ in indexes):
        raise AwsError(
            "InvalidParameterValue", "The network card index exceeds the instance type's number of network cards."
        )
    if len(rows) > int(network.get("MaximumNetworkInterfaces", 15)):
        raise AwsError("AttachmentLimitExceeded", "Interface count exceeds the limit of the instance type.")


def _check_efa(request: MergedLaunchRequest, rows: list[dict[str, Any]], description: Mapping[str, Any]) -> None:
    efa_rows = [row for row in rows if row.get("InterfaceType") in _EFA]
    network = description.get("NetworkInfo", {})
    if efa_rows and not network.get("EfaSupported"):
        raise AwsError(
            "InvalidParameterCombination", f"Elastic Fabric Adapter is not supported on {request.instance_type}."
        )
    if len(efa_rows) > int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)):
        raise AwsError(
            "AttachmentLimitExceeded", f"{len(efa_rows)} EFA interfaces exceed the limit of the instance type."
        )


def _check_group_name(call: ParsedRequest, request: MergedLaunchRequest) -> None:
    if request.placement_group:
        placement_groups.find(call, request.placement_group)
