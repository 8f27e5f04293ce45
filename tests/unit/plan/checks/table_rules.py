"""Test cases for the rules that exclude instance types and regions."""

from dataclasses import replace
from datetime import date
from decimal import Decimal

from cloudgpu.plan.named_resources import MachineImageSeen
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import RegionNetwork
from tests.unit.plan.checks.worlds import CATALOG, ONE, TWO, PlanInputs, fails, in_block, resources, row, sold, spot

ID = "ami-0123456789abcdef0"
OTHER_IMAGE = "set resources.image to another image, or omit it to use the default image of the GPU"


def image(seen, image=ID):
    return PlanInputs(
        {"resources": {**TWO, "image": image}}, Quotes(live=True, machine_images={(image, "us-east-1"): seen})
    )


NO_VPC = RegionNetwork(missing="us-east-1 has no default VPC", is_default=True)
CREATE_VPC = "set vpc_id, set create_vpc to true, or run `aws ec2 create-default-vpc --region us-east-1`"

RULES = (
    row(
        "machine-image-id",
        (PlanInputs(), image(MachineImageSeen("there", architecture="x86_64")), image(MachineImageSeen("unknown"))),
        fails(
            image(MachineImageSeen("missing")),
            (
                "error",
                f"machine image {ID} does not exist in us-east-1 or is not shared with this account",
                OTHER_IMAGE,
            ),
        ),
        fails(
            image(MachineImageSeen("missing"), "/my/parameter"),
            ("error", "the parameter /my/parameter of the machine image does not exist in us-east-1", OTHER_IMAGE),
        ),
        fails(
            image(MachineImageSeen("there", unfit="is disabled")),
            ("error", f"machine image {ID} in us-east-1 is disabled", OTHER_IMAGE),
        ),
        fails(
            image(MachineImageSeen("there", architecture="arm64")),
            (
                "error",
                f"machine image {ID} in us-east-1 is for arm64, but p3dn.24xlarge needs x86_64",
                OTHER_IMAGE,
            ),
        ),
    ),
    row(
        "image-state",
        image(MachineImageSeen("there", deprecated_on=date(2027, 1, 1))),
        fails(
            image(MachineImageSeen("there", deprecated_on=date(2024, 4, 20), product_codes=("abc",))),
            (
                "warning",
                f"machine image {ID} in us-east-1 is deprecated since 2024-04-20",
                "set resources.image to a newer image",
            ),
            (
                "warning",
                f"machine image {ID} in us-east-1 needs a subscription to abc",
                "subscribe to it in AWS Marketplace once",
            ),
        ),
        fails(
            image(MachineImageSeen("unknown", "denied")),
            ("unknown", f"cannot tell whether machine image {ID} in us-east-1 exists: denied", ""),
        ),
    ),
    row(
        "subnet",
        PlanInputs(),
        fails(
            replace(PlanInputs(), quotes=Quotes(live=True, networks={"us-east-1": NO_VPC})),
            ("error", "us-east-1 has no default VPC", CREATE_VPC),
        ),
    ),
    row(
        "retired",
        PlanInputs(),
        fails(
            resources(instance_type="p3.16xlarge"),
            (
                "error",
                "AWS retired p3.16xlarge on 2025-12-20, and it can no longer be launched; its successor is "
                "p3dn.24xlarge",
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
    ),
    row(
        "gpu-memory",
        (resources(**ONE, gpu_memory="32GiB"), PlanInputs()),
        fails(
            resources(instance_type="p3dn.24xlarge", gpu_memory="33GiB"),
            (
                "error",
                "p3dn.24xlarge has 32 GiB on each V100, but the recipe requires 33 GiB",
                "--set resources.instance_type=p4d.24xlarge",
            ),
        ),
    ),
    row(
        "market",
        (PlanInputs(), in_block()),
        fails(
            replace(spot(), catalog=sold("p3dn.24xlarge", "capacity-block", "on-demand")),
            (
                "error",
                "AWS does not offer p3dn.24xlarge as spot, only as capacity-block or on-demand",
                "--set resources.market=on-demand",
            ),
        ),
        fails(
            replace(
                resources(instance_type="p4d.24xlarge"),
                catalog=sold("p4d.24xlarge", "on-demand", "capacity-block", on_demand_usd={}, spot_usd={}),
            ),
            (
                "error",
                "p4d.24xlarge has no known on-demand price, but AWS offers it in Capacity Blocks",
                "buy a block, and set resources.market to capacity-block and resources.reservation to its ID",
            ),
        ),
    ),
    row(
        "efa",
        PlanInputs(),
        fails(
            resources(instance_type="g5.xlarge", network="efa"),
            ("error", "g5.xlarge has no EFA; g5.8xlarge has it", "--set resources.network=auto"),
        ),
    ),
    row(
        "offered",
        PlanInputs(),
        fails(
            replace(PlanInputs(), quotes=Quotes(live=True, zones={("p3dn.24xlarge", "us-east-1"): ()})),
            (
                "error",
                "p3dn.24xlarge is not offered in us-east-1",
                "--set resources.regions=ap-northeast-1,eu-west-1,us-west-2",
            ),
        ),
    ),
    row(
        "price",
        PlanInputs(),
        fails(
            replace(
                PlanInputs(),
                catalog=replace(
                    CATALOG,
                    types={
                        **CATALOG.types,
                        "p3dn.24xlarge": replace(
                            CATALOG.types["p3dn.24xlarge"], on_demand_usd={"us-west-2": Decimal("31.2")}
                        ),
                    },
                ),
            ),
            (
                "error",
                "no price is known for p3dn.24xlarge in us-east-1",
                "cloudgpu catalog refresh --on aws --region us-east-1",
            ),
        ),
    ),
)
