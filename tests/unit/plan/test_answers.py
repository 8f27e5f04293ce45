"""Known hardware and software incompatibilities: the error of each and the alternatives offered."""

import shlex
from datetime import date
from pathlib import Path

import pytest

from cloudgpu.app.planning.planner import read_sets
from cloudgpu.catalog import load
from cloudgpu.plan import planner
from cloudgpu.plan.capacity import VcpuHeadroom
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.loader import LoadedRecipe, resolve
from cloudgpu.recipe.schema import Recipe

CATALOG = load()
TODAY = date(2026, 8, 1)
DLAMI = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
NCCL_TESTS = "public.ecr.aws/hpc-cloud/nccl-tests:latest"


def recipe(environment=None, **resources):
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": resources,
            "environment": environment or {},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 100_000},
        }
    )


def container(image):
    return {"container": {"image": image}}


def torch(*requirements, **more):
    return {"python": {"requirements": list(requirements), **more}}


def make(one, *, target="aws", quotes=None, network=None) -> Plan:
    return planner.build_plan(
        PlannerInput(
            one,
            target=target,
            catalog=CATALOG,
            quotes=quotes or Quotes(),
            default_region="us-east-1",
            today=TODAY,
            network=network or NetworkRequest(),
        )
    )


def applied(one, command):
    """Apply command-line options to the recipe."""
    words = shlex.split(command)
    assert words[::2] == ["--set"] * (len(words) // 2)
    return resolve(LoadedRecipe(one, Path("recipe.yaml"), Path()), sets=read_sets(words[1::2]), rehearsal=False)


def error(plan, check):
    return next(finding for finding in plan.errors if finding.check == check)


def offers(finding):
    return [remedy.command for remedy in finding.remedies]


def hardware(name):
    return f"--set resources.instance_type={name}"


ANSWERS = [
    pytest.param(
        recipe(instance_type="p3.16xlarge"),
        "retired",
        "AWS retired p3.16xlarge",
        [hardware("p3dn.24xlarge"), hardware("g4dn.metal")],
        id="p3.16xlarge",
    ),
    pytest.param(
        recipe(container("nvcr.io/nvidia/pytorch:25.01-py3"), instance_type="p3dn.24xlarge"),
        "image",
        "25.01-py3 cannot run on V100 (p3dn.24xlarge): its native code starts at 7.5, but V100 has 7.0",
        ["--set environment.container.image=nvcr.io/nvidia/pytorch:24.12-py3"],
        id="V100 and 25.01",
    ),
    pytest.param(
        recipe(container("nvcr.io/nvidia/pytorch:25.03-py3"), instance_type="p3dn.24xlarge"),
        "image",
        "25.03 needs compute capability 7.5, but V100 has 7.0; the last NGC release that supports this GPU is 24.12",
        ["--set environment.container.image=nvcr.io/nvidia/pytorch:24.12-py3"],
        id="V100 and a month whose tag nobody lists",
    ),
    pytest.param(
        recipe(instance_type="p3dn.24xlarge", image=DLAMI),
        "machine-image",
        "open kernel modules, which do not support V100 (Volta); without resources.image the nodes get plain Ubuntu, "
        "and the bootstrap installs R580 with the proprietary modules",
        ["--set resources.image="],
        id="V100 and open modules",
    ),
    pytest.param(
        recipe(torch("torch>=2.11"), instance_type="p3dn.24xlarge"),
        "torch",
        "the default wheels (cu130) of PyTorch 2.11 and later do not run on V100",
        ["--set environment.python.torch_backend=cu126"],
        id="V100 and PyTorch's default wheel",
    ),
    pytest.param(
        recipe(container("nvcr.io/nvidia/pytorch:24.12-py3"), instance_type="p6-b200.48xlarge"),
        "image",
        "24.12-py3 cannot run on B200 (p6-b200.48xlarge): the first NGC release that supports B200 is 25.01",
        ["--set environment.container.image=nvcr.io/nvidia/pytorch:25.01-py3"],
        id="B200 and 24.12",
    ),
    pytest.param(
        recipe(instance_type="p2.xlarge", driver=580),
        "driver",
        "driver R580 does not support K80 (p2.xlarge): the last branch for Kepler is R470",
        ["--set resources.driver=470"],
        id="K80 and R580",
    ),
    pytest.param(
        recipe(container("nvcr.io/nvidia/caffe2:18.08-py3"), instance_type="p4d.24xlarge"),
        "image",
        "caffe2:18.08-py3 cannot run on A100 (p4d.24xlarge): its native code stops at 7.0, but A100 has 8.0",
        [hardware("p3dn.24xlarge")],
        id="A100 and Caffe2",
    ),
    pytest.param(
        recipe(container(NCCL_TESTS), instance_type="p3dn.24xlarge"),
        "image",
        "cannot run on V100 (p3dn.24xlarge): its native code starts at 8.0, but V100 has 7.0",
        [hardware("p4d.24xlarge")],
        id="V100 and nccl-tests for sm_80",
    ),
]


ON_REHEARSAL_TOO = [one for one in ANSWERS if one.values[1] != "torch"]
"""The wheels of a rehearsal need no GPU."""


@pytest.mark.parametrize(("one", "check", "said", "offered"), ANSWERS)
def test_incompatible_request_is_rejected_with_working_alternatives(one, check, said, offered):
    is_refused(make(one), check, said, offered)


@pytest.mark.parametrize(("one", "check", "said", "offered"), ON_REHEARSAL_TOO)
def test_rehearsal_rejects_the_same_requests_as_aws(one, check, said, offered):
    is_refused(make(one, target="rehearsal"), check, said, offered)


def is_refused(plan, check, said, offered):
    assert plan.candidates == ()
    found = error(plan, check)
    assert said in found.message
    assert offers(found)[: len(offered)] == offered


@pytest.mark.parametrize(("one", "check", "_said", "_offered"), ANSWERS)
def test_every_offered_option_resolves_its_error(one, check, _said, _offered):
    plan = make(one)
    for finding in plan.errors:
        for command in offers(finding):
            cured = make(applied(one, command))
            assert finding.check not in {left.check for left in cured.errors}
            assert {left.check for left in cured.errors} < {left.check for left in plan.errors}
    for remedy in plan.remedies:
        assert make(applied(one, remedy.command)).errors == ()


def test_retired_type_is_replaced_by_cheapest_type_with_equal_memory():
    wanted = CATALOG.types["p3.16xlarge"].gpu_memory_total_gib
    enough = [
        kind
        for kind in CATALOG.types.values()
        if not kind.retired and kind.gpu_memory_total_gib >= wanted and "us-east-1" in kind.on_demand_usd
    ]
    cheapest = min(enough, key=lambda kind: kind.on_demand_usd["us-east-1"]).name
    assert hardware(cheapest) in offers(error(make(recipe(instance_type="p3.16xlarge")), "retired"))


def test_incompatible_wheel_is_only_a_note_in_rehearsal():
    plan = make(recipe(torch("torch>=2.11"), instance_type="p3dn.24xlarge"), target="rehearsal")
    assert plan.errors == ()
    (note,) = [finding for finding in plan.findings if finding.check == "torch-on-aws"]
    assert note.message.startswith("on AWS: the default wheels (cu130) of PyTorch 2.11")
    assert (note.severity, note.fix) == ("note", "--set environment.python.torch_backend=cu126")


def test_caffe2_on_t4_is_only_a_warning():
    plan = make(recipe(container("nvcr.io/nvidia/caffe2:18.08-py3"), instance_type="g4dn.12xlarge"), target="rehearsal")
    assert plan.errors == ()
    (warning,) = [finding for finding in plan.findings if finding.check == "container-code"]
    assert warning.severity == "warning"
    assert warning.message == "nvcr.io/nvidia/caffe2:18.08-py3 is not tuned for T4: its newest native code is for 7.0"


def test_request_above_quota_suggests_fewer_nodes():
    room = {("us-east-1", "L-417A185B"): VcpuHeadroom(96, 0)}
    plan = make(recipe(instance_type="p3dn.24xlarge", nodes=2), quotes=Quotes(live=True, quotas=room))
    (found,) = plan.errors
    assert "L-417A185B" in found.message
    assert "192" in found.message
    assert "--set resources.nodes=1" in offers(found)
    assert make(applied(plan.recipe, "--set resources.nodes=1"), quotes=Quotes(live=True, quotas=room)).errors == ()


def test_nodes_with_32_interfaces_use_elastic_or_private_addresses():
    """EC2 does not assign a public address to a node with several interfaces."""
    one = recipe(instance_type="p5.48xlarge", nodes=2)
    plan = make(one)
    assert {(way.efa_interfaces, way.public_address) for way in plan.candidates} == {(32, "elastic")}
    said = " ".join(finding.message for finding in plan.findings)
    assert (
        "p5.48xlarge has 32 EFA interfaces, so EC2 does not assign a public address: each node gets an Elastic IP"
        in said
    )
    private = make(one, network=NetworkRequest(own_subnet=True, own_network=True))
    assert {way.public_address for way in private.candidates} == {"private"}
    none_free = Quotes(free_addresses={"us-east-1": 0})
    refused = make(one, quotes=none_free, network=NetworkRequest(own_network=True))
    assert "--set resources.network=tcp" in offers(error(refused, "address"))
