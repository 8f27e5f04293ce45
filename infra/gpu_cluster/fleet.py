"""The launch template of a node, and the fleet that launches either all nodes or none.

With the direct engine, `cloudgpu/aws/resources/fleet.py` launches it; `cloudgpu/engine/direct/engine.py` has the route.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.interfaces import Interface
from gpu_cluster.settings import Market

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


@dataclass(frozen=True)
class GangArgs:
    """Settings of the fleet, which launches `nodes` instances of one type in one subnet."""

    nodes: int
    instance_type: str
    market: Market
    subnet_id: pulumi.Input[str]
    template_id: pulumi.Input[str]
    tags: dict[str, str]


class GangFleet(pulumi.ComponentResource):
    """An `instant` fleet whose minimum capacity equals its size, so that EC2 launches either all nodes or none."""

    fleet_id: pulumi.Output[str]
    instance_ids: pulumi.Output[list[str]]

    def __init__(self, name: str, args: GangArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Gang", name, None, opts)
        fleet = aws.ec2.Fleet(
            name,
            type="instant",
            terminate_instances=True,
            launch_template_configs=[
                {
                    # With `$Latest` instead of a number, a changed template affects the next launch, not running nodes.
                    "launch_template_specification": {"launch_template_id": args.template_id, "version": "$Latest"},
                    "overrides": [{"instance_type": args.instance_type, "subnet_id": args.subnet_id}],
                },
            ],
            target_capacity_specification={
                # A reservation is on-demand capacity that is reserved for its owner.
                "default_target_capacity_type": "on-demand" if args.market == "reservation" else args.market,
                "total_target_capacity": args.nodes,
            },
            tags=args.tags,
            **_market_options(args),
            # Children do not inherit `depends_on`. Without it, resources that the nodes need would be deleted first.
            opts=pulumi.ResourceOptions(parent=self, depends_on=None if opts is None else opts.depends_on),
        )
        self.fleet_id = fleet.id
        self.instance_ids = fleet.fleet_instance_sets.apply(_instance_ids)
        self.register_outputs({"fleetId": self.fleet_id, "instanceIds": self.instance_ids})


def _market_options(args: GangArgs) -> dict[str, Any]:
    gang: dict[str, Any] = {
        "min_target_capacity": args.nodes,
        "single_instance_type": True,
        "single_availability_zone": True,
    }
    if args.market == "capacity-block":
        return {}  # the Capacity Block determines what is launched
    if args.market == "spot":
        strategy = {"allocation_strategy": "price-capacity-optimized", "instance_interruption_behavior": "terminate"}
        return {"spot_options": strategy | gang}
    return {"on_demand_options": {"allocation_strategy": "lowestPrice"} | gang}


def _instance_ids(sets: list[aws.ec2.outputs.FleetFleetInstanceSet] | None) -> list[str]:
    """Return the instance IDs in sorted order, so that the node numbers are the same every time the program runs."""
    return sorted(instance for fleet_set in sets or [] for instance in fleet_set.instance_ids or [])
