"""The fleet that launches either all nodes or none.

With the direct engine, `cloudgpu/aws/resources/fleet.py` launches it; `cloudgpu/engine/direct/engine.py` has the route.
"""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_cluster.settings import Market


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
