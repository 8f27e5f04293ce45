"""Test cases for the checks of self-managed hosts."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from cloudgpu.hosts.host import HostSeen, HostsFile, HostsView, OwnHost
from tests.unit.plan.checks.worlds import PlanInputs, fails, row


def host(name: str, **known: Any) -> OwnHost:
    usual = {"gpu": "V100", "gpus": 8, "gpu_memory_gib": Decimal(16), "driver": "580.126.09", "pool": "dgx"}
    return OwnHost(name, f"{name}.example.org", 22, "ann", 1, **{**usual, **known})


FREE = HostSeen(gpus=8)
PAIR = (host("red"), host("blue"))


def lab(*hosts: OwnHost, seen: dict[str, HostSeen] | None = None, **recipe: Any) -> PlanInputs:
    asked = {one.name: FREE for one in hosts} if seen is None else seen
    resources = {"gpu": "V100:8", "nodes": 2, **recipe.pop("resources", {})}
    view = HostsView(HostsFile(Path("hosts.yaml"), hosts), asked)
    return PlanInputs({"resources": resources, **recipe}, hosts=view)


MIXED = lab(host("red"), host("blue", gpu_memory_gib=Decimal(32)))
LEASED = HostSeen(
    gpus=8, taken=("leased: GPUs 0-7 by ben, cluster x, until 2026-08-01 10:00 UTC",), busy=frozenset(range(8))
)

HOSTS = (
    row(
        "pool",
        (PlanInputs(), lab(*PAIR), lab(*PAIR, resources={"pool": "dgx"})),
        fails(
            lab(*PAIR, resources={"pool": "dxg"}),
            (
                "error",
                'hosts.yaml defines no pool dxg; did you mean "dgx"?',
                "--set resources.pool=dgx",
            ),
        ),
        fails(
            lab(host("red", pool=""), host("blue", pool=""), resources={"pool": "dgx"}),
            ("error", "hosts.yaml defines no pool dgx; it has no pools", ""),
        ),
        fails(
            PlanInputs({"resources": {"gpu": "V100:8", "pool": "dgx"}}),
            ("note", "resources.pool is dgx, but pools apply only to your own hosts", "--on ssh"),
        ),
    ),
    row(
        "hosts",
        (
            PlanInputs(),
            lab(*PAIR),
            lab(*PAIR, resources={"gpu": "V100:4"}),
            lab(*PAIR, resources={"gpu": "V100-16GB:8"}),
        ),
        fails(
            lab(*PAIR, resources={"gpu": "A100:8"}),
            ("error", "no host has A100:8; hosts.yaml has V100:8 (red, blue)", "--set resources.gpu=V100:8"),
        ),
        fails(
            lab(*PAIR, resources={"nodes": 3}),
            ("error", "3 hosts with V100:8 are requested, but the inventory has only 2", "--set resources.nodes=2"),
        ),
        fails(
            MIXED,
            (
                "error",
                "2 hosts with V100:8 are requested, but the inventory has only 1 of the same kind (2 kinds or "
                "pools, which a cluster cannot mix)",
                "--set resources.nodes=1",
            ),
        ),
        fails(
            lab(host("red", gpus=0, gpu=""), resources={"nodes": 1}),
            (
                "error",
                "no host has V100:8; hosts.yaml has no known GPU (red)",
                "cloudgpu hosts scan",
            ),
        ),
    ),
    row(
        "host-free",
        (PlanInputs(), lab(*PAIR), lab(*PAIR, seen={})),
        fails(
            lab(*PAIR, seen={"red": FREE, "blue": LEASED}),
            ("error", f"blue: {LEASED.taken[0]}", ""),
        ),
        fails(
            lab(*PAIR, seen={"red": FREE, "blue": LEASED}, resources={"nodes": 1}),
            ("note", f"blue: {LEASED.taken[0]}", ""),
        ),
        fails(
            lab(*PAIR, seen={"red": FREE, "blue": HostSeen(problem="it refused the connection")}),
            ("error", "blue: it refused the connection", "cloudgpu hosts check"),
        ),
        fails(
            lab(*PAIR, seen={"red": FREE, "blue": HostSeen(gpus=7)}),
            ("error", "blue has 7 GPUs, but the inventory lists 8", "cloudgpu hosts scan"),
        ),
    ),
    row(
        "host-software",
        (PlanInputs(), lab(*PAIR), lab(*PAIR, environment={"python": {"requirements": ["torch==2.6.0"]}})),
        fails(
            lab(*PAIR, environment={"container": {"image": "nvcr.io/nvidia/pytorch:25.05-py3"}}),
            (
                "error",
                "nvcr.io/nvidia/pytorch:25.05-py3 cannot run on V100: 25.05 needs compute capability "
                "7.5, but V100 has 7.0; the last NGC release that supports this GPU is 24.12",
                "--set environment.container.image=nvcr.io/nvidia/pytorch:24.12-py3",
            ),
        ),
        fails(
            lab(*(replace(one, driver="595.10") for one in PAIR)),
            ("error", "driver R595 does not support V100: the last branch for Volta is R580", ""),
        ),
    ),
    row(
        "host-storage",
        (PlanInputs(), lab(*PAIR)),
        fails(
            lab(*PAIR, storage=[{"name": "results", "to": "/results"}]),
            (
                "error",
                "storage results is on AWS, and these hosts cannot mount it",
                "use `data`, or a path on the hosts",
            ),
        ),
    ),
    row(
        "host-unknown",
        (PlanInputs(), lab(*PAIR)),
        fails(
            lab(*PAIR, seen={}),
            ("unknown", "the hosts were not checked: they may be unreachable or in use", "plan without --offline"),
        ),
        fails(
            lab(host("red", driver=""), host("blue")),
            ("unknown", "the driver of red is unknown", "cloudgpu hosts scan red"),
        ),
    ),
    row(
        "host-ignored",
        (PlanInputs(), lab(*PAIR)),
        fails(
            lab(*PAIR, resources={"regions": ["us-east-1"], "market": "spot"}),
            ("note", "ignored on your own hosts: resources.regions, resources.market", ""),
        ),
    ),
)
