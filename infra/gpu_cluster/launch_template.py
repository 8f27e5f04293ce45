"""The launch template of a node."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.interfaces import Interface

TAGGED_AT_LAUNCH = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class TemplateArgs:
    """Launch parameters of a node.

    Attributes:
        associate_public_address: Whether EC2 assigns public addresses. None if the user's subnet determines this, or if
            EC2 does not accept the setting.
        reservation: Capacity reservation to launch into; empty for none.
        capacity_block: Whether the reservation is a Capacity Block, which is a separate market.
        tagged: Kinds of resources that the template tags. The launch call may tag instances instead, because AWS should
            get each tag only once.
    """

    physical_name: str
    image: str
    user_data: str
    key_name: pulumi.Input[str]
    security_group_ids: Sequence[pulumi.Input[str]]
    profile_name: pulumi.Input[str]
    placement_group: pulumi.Input[str] | None
    disk_gib: int
    kms_key_id: str
    interfaces: Sequence[Interface]
    associate_public_address: bool | None
    reservation: str
    capacity_block: bool
    tagged: tuple[str, ...]
    tags: dict[str, str]


class Template(pulumi.ComponentResource):
    """A launch template: IMDSv2 only, an encrypted disk, termination on power-off, and tags on all resources."""

    template_id: pulumi.Output[str]
    image_id: pulumi.Output[str]

    def __init__(self, name: str, args: TemplateArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Template", name, None, opts)
        image = _image(args.image, self)
        template = aws.ec2.LaunchTemplate(
            name,
            name=args.physical_name,
            image_id=image,
            key_name=args.key_name,
            user_data=base64.b64encode(args.user_data.encode()).decode(),
            instance_initiated_shutdown_behavior="terminate",
            iam_instance_profile={"name": args.profile_name},
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 2,  # one more than the default because containers use a bridge
                "instance_metadata_tags": "disabled",
            },
            block_device_mappings=[_root_volume(_root_device(image, self), args)],
            network_interfaces=[_interface(interface, args) for interface in args.interfaces],
            placement=None if args.placement_group is None else {"group_name": args.placement_group},
            instance_market_options={"market_type": "capacity-block"} if args.capacity_block else None,
            capacity_reservation_specification=_reservation(args.reservation),
            tag_specifications=[{"resource_type": kind, "tags": args.tags} for kind in args.tagged],
            update_default_version=True,
            tags=args.tags,
            opts=pulumi.ResourceOptions(
                parent=self,
                delete_before_replace=True,
                # A new image for the same parameter must not change a running cluster.
                ignore_changes=["image_id"],
            ),
        )
        self.template_id, self.image_id = template.id, template.image_id
        self.register_outputs({"templateId": self.template_id, "imageId": self.image_id})


def _image(image: str, parent: pulumi.Resource) -> pulumi.Output[str]:
    if image.startswith("ami-"):
        return pulumi.Output.from_input(image)
    parameter = aws.ssm.get_parameter_output(name=image, opts=pulumi.InvokeOptions(parent=parent))
    # The provider marks every parameter value as secret. An image ID is not secret and must be visible in the outputs.
    return pulumi.Output.unsecret(parameter.value)


def _root_device(image: pulumi.Output[str], parent: pulumi.Resource) -> pulumi.Output[str]:
    """Return the image's root device name, which depends on the distribution. A wrong name would add an empty disk."""
    filters = [{"name": "image-id", "values": [image]}]
    # AWS launches deprecated images, but lists them only if asked to.
    ami = aws.ec2.get_ami_output(filters=filters, include_deprecated=True, opts=pulumi.InvokeOptions(parent=parent))
    return pulumi.Output.from_input(ami.root_device_name)


def _root_volume(device: pulumi.Output[str], args: TemplateArgs) -> dict[str, Any]:
    disk: dict[str, Any] = {
        "volume_type": "gp3",
        "volume_size": args.disk_gib,
        "encrypted": "true",
        "delete_on_termination": "true",
    }
    if args.kms_key_id:
        disk["kms_key_id"] = args.kms_key_id
    return {"device_name": device, "ebs": disk}


def _reservation(reservation: str) -> dict[str, Any] | None:
    return {"capacity_reservation_target": {"capacity_reservation_id": reservation}} if reservation else None


def _interface(interface: Interface, args: TemplateArgs) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "device_index": interface.device,
        "network_card_index": interface.card,
        "security_groups": list(args.security_group_ids),
        "delete_on_termination": "true",
    }
    if interface.kind != "interface":
        definition["interface_type"] = interface.kind
    if args.associate_public_address is not None and (interface.card, interface.device) == (0, 0):
        definition["associate_public_ip_address"] = "true" if args.associate_public_address else "false"
    return definition
