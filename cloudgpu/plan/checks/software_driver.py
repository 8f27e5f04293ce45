"""Rules: exclude types whose NVIDIA driver does not support their GPU or the CUDA version of the software."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog import Gpu, InstanceType
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.catalog.images import driver_for
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.checks.software_container import parse_image_tag
from cloudgpu.plan.checks.software_torch import torch_misfit, wheels_of
from cloudgpu.plan.node_software import node_driver
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.text import command

_OLDEST_FOR_MAJOR: Final = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> the oldest driver branch that supports all of its minor versions.

Source: NVIDIA, CUDA Compatibility, Minor Version Compatibility, table 1. NVIDIA guarantees this from CUDA 11.
"""


@type_rule("machine-image", "A driver whose kernel modules do not support the GPU leaves the node without a GPU.")
def modules_unfit(question: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose GPU is not supported by the machine image's kernel modules."""
    gpu = question.catalog.gpus[instance_type.gpu]
    driver = node_driver(question.recipe, gpu)
    if driver.installed or driver.flavour is None or driver.flavour in gpu.modules:
        return
    default = driver_for(gpu.architecture)
    yield Reason(
        f"{question.recipe.resources.image} has NVIDIA's {driver.flavour} kernel modules, which do not support "
        f"{gpu.name} ({gpu.architecture}); without resources.image the nodes get plain Ubuntu, and the bootstrap "
        f"installs R{default.branch} with the {default.flavour} modules",
        "--set resources.image=",
    )


@type_rule("driver", "A driver branch that is too old or too new for the GPU does not detect the GPU on the node.")
def driver_unfit(question: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose GPU is not supported by the driver branch."""
    gpu = question.catalog.gpus[instance_type.gpu]
    driver = node_driver(question.recipe, gpu)
    if driver.branch is None or (driver.flavour is not None and driver.flavour not in gpu.modules):
        return
    problem = _unsupported_branch(gpu, driver.branch)
    if problem:
        supported = driver_for(gpu.architecture)
        fix = command("--set", f"resources.driver={supported.branch}") if driver.installed else "--set resources.image="
        yield Reason(f"driver R{driver.branch} does not support {gpu.name} ({instance_type.name}): {problem}", fix)


@type_rule("cuda", "Software built for a newer CUDA than the driver supports fails when it initializes the GPU.")
def cuda_unfit(question: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose driver is too old for the CUDA version of the container or of PyTorch."""
    gpu = question.catalog.gpus[instance_type.gpu]
    branch = node_driver(question.recipe, gpu).branch
    if branch is None:
        return
    for software, cuda, accepted in _cuda_requirements(question, gpu):
        # Before CUDA 11, NVIDIA supports only the branch of the release, newer branches, and listed older branches.
        oldest = _OLDEST_FOR_MAJOR.get(int(cuda.split(".")[0]), max(accepted, default=0))
        if branch < oldest and branch not in accepted:
            supported = driver_for(gpu.architecture)
            fix = command("--set", f"resources.driver={supported.branch}") if supported.branch >= oldest else ""
            yield Reason(
                f"{software} is built for CUDA {cuda}, which needs driver R{oldest} or newer, not R{branch}", fix
            )


def _unsupported_branch(gpu: Gpu, branch: int) -> str:
    if gpu.last_driver is not None and branch > gpu.last_driver:
        return f"the last branch for {gpu.architecture} is R{gpu.last_driver}"
    if gpu.first_driver is not None and branch < gpu.first_driver:
        return f"the first branch for {gpu.architecture} is R{gpu.first_driver}"
    return ""


def _cuda_requirements(question: PlannerInput, gpu: Gpu) -> Iterator[tuple[str, str, frozenset[int]]]:
    """Yield (name, CUDA version, accepted driver branches) for the software that includes CUDA."""
    environment = question.recipe.environment
    if environment.container is not None:
        image = environment.container.image
        month, tag = release_of(image, question.software), parse_image_tag(image)
        if month is not None:
            yield image, month.cuda, frozenset({month.driver, *month.other_drivers})
        elif tag.cuda is not None:
            yield image, tag.cuda, frozenset()
    # No driver can run wheels that do not support the GPU: the `torch` rule reports them.
    releases, python = question.software.torch, environment.python
    if python is not None and not question.rehearsed and not torch_misfit(python, gpu, releases):
        wheels = wheels_of(python, releases)
        if wheels is not None and wheels.cuda is not None:
            yield f"PyTorch ({wheels.build})", wheels.cuda, frozenset()
