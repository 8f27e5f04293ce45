"""Test cases for the checks of hardware, regions, zones and markets."""

from dataclasses import replace
from datetime import UTC, datetime

from cloudgpu.plan.plan import Quotes
from tests.unit.plan.checks.worlds import (
    BLOCK,
    HELD,
    NOW,
    ONE,
    TWO,
    PlanInputs,
    fails,
    in_block,
    resources,
    row,
    spot,
)

HARDWARE = (
    row(
        "instance-type",
        PlanInputs(),
        fails(
            resources(instance_type="p3dn.24xlage"),
            (
                "error",
                'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"?',
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
        fails(
            resources(instance_type="g6f.xlarge"),
            (
                "error",
                "g6f.xlarge has a part of an L4, and cloudgpu supports only whole GPUs; the nearest type is g6.xlarge",
                "--set resources.instance_type=g6.xlarge",
            ),
        ),
    ),
    row(
        "gpu",
        resources(gpu="V100:8"),
        fails(resources(gpu="V10:8"), ("error", 'unknown GPU V10; did you mean "V100"?', "--set resources.gpu=V100:8")),
        fails(
            resources(gpu="T4:3"),
            ("error", "no instance type has 3 T4; available: T4:1, T4:4, T4:8", "--set resources.gpu=T4:8"),
        ),
    ),
    row(
        "region",
        resources(gpu="V100:8", regions=["us-west-2"]),
        fails(
            resources(gpu="V100:8", regions=["us-eastt-1"]),
            ("error", 'unknown region us-eastt-1; did you mean "us-east-1"?', "--set resources.regions=us-east-1"),
        ),
        fails(
            resources(gpu="V100:8", regions=["cn-north-1"]),
            (
                "error",
                "region cn-north-1 is in AWS China (partition aws-cn), which cloudgpu does not support",
                "--set resources.regions=us-east-1, with an account of the partition aws",
            ),
        ),
    ),
    row(
        "candidates",
        PlanInputs(),
        fails(
            replace(
                PlanInputs(), quotes=Quotes(live=True, zones={("p3dn.24xlarge", "us-east-1"): ("us-east-1-bos-1a",)})
            ),
            ("error", "the recipe cannot use any zone of us-east-1", ""),
        ),
    ),
    row(
        "new-account",
        (
            resources(instance_type="g6.xlarge"),
            replace(PlanInputs(), target="rehearsal"),
            resources(instance_type="p3.16xlarge"),
        ),
        fails(
            resources(instance_type="p3dn.24xlarge"),
            (
                "note",
                "p3dn.24xlarge may not be available to new accounts: AWS has retired the other P3 types; "
                "the nearest type is p4d.24xlarge",
                "--set resources.instance_type=p4d.24xlarge",
            ),
        ),
    ),
    row(
        "gang",
        resources(any_of=["p4d.24xlarge", "A100-40GB:8"]),
        fails(
            resources(any_of=["p3dn.24xlarge", "p4d.24xlarge"]),
            ("note", "the GPU depends on availability and is the same on all nodes: V100 32 GiB or A100 40 GiB", ""),
        ),
    ),
    row(
        "image-region",
        (
            resources(**ONE, image="ami-0123456789abcdef0"),
            resources(gpu="V100:8", image="/own/image", regions=["us-east-1", "us-west-2"]),
        ),
        fails(
            resources(**ONE, image="ami-0123456789abcdef0", regions=["us-east-1", "us-west-2"]),
            (
                "error",
                "ami-0123456789abcdef0 exists in one region only, but the recipe lists 2",
                "--set resources.regions=us-east-1",
            ),
        ),
    ),
)

MARKET = (
    row(
        "cool-down",
        PlanInputs(),
        fails(
            PlanInputs(quotes=Quotes(live=True, refused={("p3dn.24xlarge", "us-east-1c", "on-demand"): 125})),
            ("note", "us-east-1c p3dn.24xlarge on-demand: no capacity 2 min ago, tried last", ""),
        ),
    ),
    row(
        "reservation",
        PlanInputs(),
        fails(
            replace(in_block(), quotes=Quotes()),
            (
                "warning",
                f"{HELD} was not checked: its zone, start and end are unknown",
                "plan without --offline",
            ),
        ),
        fails(
            in_block(ends_at=datetime(2026, 8, 1, 12, 35, tzinfo=UTC)),
            ("error", f"{HELD} ends too soon for a run: AWS terminates its nodes 30 minutes before the end", ""),
            (
                "note",
                f"{HELD} is paid in advance: its nodes cost nothing more and count as 0 USD in the worst case",
                "",
            ),
            (
                "note",
                f"{HELD} ends at 2026-08-01 12:35 UTC, and AWS terminates its nodes 30 minutes earlier: "
                "the expiry is 5m instead of 8h",
                "",
            ),
        ),
        fails(
            in_block(free=1),
            ("error", f"{HELD} has 1 free instance, but 2 are needed", ""),
        ),
        fails(
            in_block(zone="us-west-2b"),
            (
                "error",
                f"{HELD} is in us-west-2b, which is not in us-east-1 or is excluded by the recipe's zones or storage",
                "",
            ),
        ),
    ),
    row(
        "all-or-none",
        (
            spot(),
            replace(resources(**TWO), engine="pulumi"),
            replace(spot(resources={**ONE, "market": "spot"}), engine="pulumi"),
        ),
        fails(
            replace(spot(), engine="pulumi"),
            (
                "error",
                "the pulumi engine cannot launch 2 spot nodes all or none: the provider sends no minimum for spot, "
                "so a partial launch would be billed",
                "--engine direct, or --set resources.market=on-demand",
            ),
        ),
        fails(
            replace(resources(**TWO, prefer="spot"), engine="pulumi"),
            (
                "error",
                "the pulumi engine cannot launch 2 spot nodes all or none: the provider sends no minimum for spot, "
                "so a partial launch would be billed",
                "--engine direct",
            ),
        ),
    ),
    row(
        "placement",
        (PlanInputs(), in_block(), spot(resources={**ONE, "market": "spot"})),
        fails(
            spot(),
            (
                "note",
                "2 spot nodes in one placement group are harder to get than one node, "
                "and an interruption stops them all",
                "",
            ),
        ),
        fails(
            replace(
                resources(**TWO, market="reservation", reservation=HELD),
                quotes=Quotes(
                    live=True,
                    reservation=replace(BLOCK, kind="default", instance_type="p3dn.24xlarge"),
                    asked_at=NOW,
                ),
            ),
            (
                "warning",
                f"the 2 nodes use a new placement group, but {HELD} was not created in it: AWS may reject the launch",
                "use one node per cluster, or a Capacity Block",
            ),
        ),
    ),
    row(
        "spot",
        PlanInputs(),
        fails(
            spot(),
            (
                "warning",
                "spot nodes can be interrupted with two minutes' notice, but the recipe has no checkpoint",
                "--set resources.market=on-demand",
            ),
            (
                "warning",
                "spot prices change: the worst case uses the highest observed price, or the on-demand price",
                "",
            ),
        ),
    ),
    row(
        "grace",
        (spot(checkpoint={"path": "c", "grace": "110s"}), PlanInputs({"checkpoint": {"path": "c", "grace": "10m"}})),
        fails(
            spot(checkpoint={"path": "c", "grace": "111s"}),
            (
                "warning",
                "checkpoint.grace is 1m51s, but spot nodes terminate two minutes after the notice",
                "--set checkpoint.grace=90s",
            ),
        ),
        fails(
            PlanInputs({"checkpoint": {"path": "c", "grace": "1h"}, "budget": {"max_usd": 999, "expiry": "1h"}}),
            ("warning", "checkpoint.grace is 1h, but the nodes terminate after 1h", ""),
        ),
    ),
)
