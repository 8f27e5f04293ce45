"""Validate a launch, in the order of AWS's own checks."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from typing import Any

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import filter_iam_instance_profiles
from moto.iam.exceptions import NotFoundException

from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.launch import placement_groups
from cloudgpu.rehearsal.aws_api.launch.request import MergedLaunchRequest
from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest

_AMI_ID = re.compile(r"ami-[0-9a-f]{8}([0-9a-f]{9})?$")
_EFA = ("efa", "efa-only")


def admit(call: ParsedRequest, wanted: MergedLaunchRequest) -> MergedLaunchRequest:
    """Validate one launch and choose its zone and subnet.

    Raises:
        AwsError: As on AWS. Capacity and quotas are checked elsewhere.
    """
    facts = _type_facts(call, wanted)
    _check_image(call, wanted)
    _check_key(call, wanted)
    placed = _place(call, wanted)
    instance_types.require_zone(call.region, placed.instance_type, placed.zone)
    _check_groups(call, placed)
    _check_interfaces(placed, facts)
    _check_group_name(call, placed)
    _check_profile(call, placed)
    _ = placed.user_data
    return placed


def profile(call: ParsedRequest, wanted: MergedLaunchRequest) -> Any:  # noqa: ANN401 - moto's instance profile
    """Return the requested instance profile, or None if the request has none.

    Raises:
        AwsError: There is no such profile.
    """
    named = wanted.data.get("IamInstanceProfile") or {}
    name, arn = named.get("Name"), named.get("Arn")
    if not (name or arn):
        return None
    try:
        found = filter_iam_instance_profiles(call.backend.account_id, "aws", arn, name)
    except NotFoundException:
        found = None
    if found is None:
        kind, value = ("Name", name) if name else ("ARN", arn)
        raise AwsError("InvalidParameterValue", f"Value ({value}) for parameter iamInstanceProfile.{kind.lower()} is "
                       f"invalid. Invalid IAM Instance Profile {kind}")  # fmt: skip
    return found


def _check_profile(call: ParsedRequest, wanted: MergedLaunchRequest) -> None:
    """Reject a new instance profile that EC2 does not know yet."""
    found = profile(call, wanted)
    if found is not None and call.world.behaviour.profile_unknown(str(found.id), found.create_date.replace(tzinfo=UTC)):
        raise AwsError("InvalidParameterValue", f"Value ({found.name}) for parameter iamInstanceProfile.name is "
                       "invalid. Invalid IAM Instance Profile name")  # fmt: skip


def _type_facts(call: ParsedRequest, wanted: MergedLaunchRequest) -> dict[str, Any]:
    if not wanted.instance_type:
        raise AwsError("MissingParameter", "The request must contain the parameter InstanceType")
    return instance_types.require_type(call, wanted.instance_type)


def _check_image(call: ParsedRequest, wanted: MergedLaunchRequest) -> None:
    image_id = str(wanted.data.get("ImageId") or "")
    if not image_id:
        raise AwsError("MissingParameter", "The request must contain the parameter ImageId")
    if not _AMI_ID.match(image_id):
        raise AwsError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
    if image_id not in call.backend.amis:
        raise AwsError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")


def _check_key(call: ParsedRequest, wanted: MergedLaunchRequest) -> None:
    name = wanted.data.get("KeyName")
    if name and name not in call.backend.key_pairs:
        raise AwsError("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")


def _place(call: ParsedRequest, wanted: MergedLaunchRequest) -> MergedLaunchRequest:
    """Choose subnet and zone. By default, the first zone that offers the type and has a subnet."""
    if wanted.subnet_id:
        subnet = _subnet(call, wanted.subnet_id)
        if wanted.zone and wanted.zone != subnet.availability_zone:
            raise AwsError(
                "InvalidParameterValue", f"The subnet {subnet.id} is not in the Availability Zone {wanted.zone}."
            )
        return replace(wanted, zone=str(subnet.availability_zone))
    defaults: Mapping[str, Any] = call.backend.get_default_subnets() or {}
    zones = (wanted.zone,) if wanted.zone else instance_types.zones_by_type(call.region)[wanted.instance_type]
    for zone in zones:
        if zone in defaults:
            return replace(wanted, zone=zone, subnet_id=str(defaults[zone].id))
    if wanted.zone and all(zone.name != wanted.zone for zone in call.backend.describe_availability_zones()):
        raise AwsError("InvalidParameterValue", f"Invalid availability zone: [{wanted.zone}]")
    raise AwsError("MissingInput", "No subnets found for the default VPC. Please specify a subnet.")


def _subnet(call: ParsedRequest, subnet_id: str) -> Any:  # noqa: ANN401 - moto's subnet
    try:
        return call.backend.get_subnet(subnet_id)
    except EC2ClientError:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist") from None


def _check_groups(call: ParsedRequest, wanted: MergedLaunchRequest) -> None:
    ids = list(wanted.group_ids)
    for row in wanted.interfaces:
        ids += [str(value) for value in row.get("Groups") or []]
    vpc_id = _subnet(call, wanted.subnet_id).vpc_id
    for group_id in ids:
        group = call.backend.get_security_group_from_id(group_id)
        if group is None:
            raise AwsError("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
        if group.vpc_id != vpc_id:
            raise AwsError(
                "InvalidParameter",
                f"Security group {group_id} and subnet {wanted.subnet_id} belong to different networks.",
            )


def _check_interfaces(wanted: MergedLaunchRequest, facts: Mapping[str, Any]) -> None:
    rows = wanted.interfaces
    if rows and (wanted.group_ids or wanted.data.get("SubnetId")):
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
    _check_cards(rows, facts)
    _check_efa(wanted, rows, facts)


def _check_cards(rows: list[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    network = facts.get("NetworkInfo", {})
    places = [(int(row.get("NetworkCardIndex") or 0), int(row.get("DeviceIndex") or 0)) for row in rows]
    if len(set(places)) != len(places):
        raise AwsError("InvalidParameterValue", "Each network interface requires a unique device index.")
    if places and (0, 0) not in places:
        raise AwsError("InvalidParameterCombination", "A primary network interface (device index 0) is required.")
    if any(card >= int(network.get("MaximumNetworkCards", 1)) for card, _ in places):
        raise AwsError("InvalidParameterValue", "The network card index exceeds the cards of the instance type.")
    if len(rows) > int(network.get("MaximumNetworkInterfaces", 15)):
        raise AwsError("AttachmentLimitExceeded", "Interface count exceeds the limit of the instance type.")


def _check_efa(wanted: MergedLaunchRequest, rows: list[dict[str, Any]], facts: Mapping[str, Any]) -> None:
    asked = [row for row in rows if row.get("InterfaceType") in _EFA]
    network = facts.get("NetworkInfo", {})
    if asked and not network.get("EfaSupported"):
        raise AwsError(
            "InvalidParameterCombination", f"Elastic Fabric Adapter is not supported on {wanted.instance_type}."
        )
    if len(asked) > int((network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0)):
        raise AwsError("AttachmentLimitExceeded", f"{len(asked)} EFA interfaces exceed the limit of the type.")


def _check_group_name(call: ParsedRequest, wanted: MergedLaunchRequest) -> None:
    if wanted.placement_group:
        placement_groups.find(call, wanted.placement_group)
