"""Does the driver of the nodes know the GPU, and does it carry the CUDA of what runs on them?"""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog import Gpu, InstanceType
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.catalog.images import driver_for
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.checks.software_tags import parse_image_tag
from cloudgpu.plan.checks.software_torch import torch_misfit, wheels_of
from cloudgpu.plan.driver import node_driver
from cloudgpu.plan.question import Question
from cloudgpu.text import command

_OLDEST_FOR_MAJOR: Final = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> the oldest driver branch that carries all of its minor ones.

NVIDIA, CUDA Compatibility, Minor Version Compatibility, table 1. Before CUDA 11 there was no such promise.
"""


@type_rule("machine-image", "A driver whose kernel modules do not know the GPU leaves a node without one.")
def modules_unfit(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Yield the reason if the kernel modules of the machine image do not support the GPU."""
    gpu = question.catalog.gpus[kind.gpu]
    there = node_driver(question.recipe, gpu)
    if there.installed or there.flavour is None or there.flavour in gpu.modules:
        return
    ours = driver_for(gpu.architecture)
    yield Reason(
        f"{question.recipe.resources.image} carries NVIDIA's {there.flavour} kernel modules, which do not drive "
        f"{gpu.name} ({gpu.architecture}); without resources.image the nodes get plain Ubuntu, and our bootstrap "
        f"installs R{ours.branch} with the {ours.flavour} ones",
        "--set resources.image=",
    )


@type_rule("driver", "A driver that does not know the GPU, or has forgotten it, finds none on the node.")
def driver_unfit(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Yield the reason if the driver branch is outside the range of the GPU."""
    gpu = question.catalog.gpus[kind.gpu]
    there = node_driver(question.recipe, gpu)
    if there.branch is None or (there.flavour is not None and there.flavour not in gpu.modules):
        return
    wrong = _outside(gpu, there.branch)
    if wrong:
        fitting = driver_for(gpu.architecture)
        fix = command("--set", f"resources.driver={fitting.branch}") if there.installed else "--set resources.image="
        yield Reason(f"driver R{there.branch} does not drive {gpu.name} ({kind.name}): {wrong}", fix)


@type_rule("cuda", "Software made for a newer CUDA than the driver carries ends when it asks for the GPU.")
def cuda_unfit(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Yield the reason if the driver is too old for the CUDA of the container or of PyTorch."""
    gpu = question.catalog.gpus[kind.gpu]
    branch = node_driver(question.recipe, gpu).branch
    if branch is None:
        return
    for what, cuda, accepted in _wanted(question, gpu):
        # Without the promise it is the branch that it was made with, and the older ones by name alone.
        oldest = _OLDEST_FOR_MAJOR.get(int(cuda.split(".")[0]), max(accepted, default=0))
        if branch < oldest and branch not in accepted:
            fitting = driver_for(gpu.architecture)
            fix = command("--set", f"resources.driver={fitting.branch}") if fitting.branch >= oldest else ""
            yield Reason(f"{what} is made for CUDA {cuda}, which needs driver R{oldest} or newer, not R{branch}", fix)


def _outside(gpu: Gpu, branch: int) -> str:
    if gpu.last_driver is not None and branch > gpu.last_driver:
        return f"the last branch for {gpu.architecture} is R{gpu.last_driver}"
    if gpu.first_driver is not None and branch < gpu.first_driver:
        return f"the first branch for it is R{gpu.first_driver}"
    return ""


def _wanted(question: Question, gpu: Gpu) -> Iterator[tuple[str, str, frozenset[int]]]:
    """Yield each component with its own CUDA, its CUDA version, and the driver branches that are accepted by name."""
    environment = question.recipe.environment
    if environment.container is not None:
        image = environment.container.image
        month, tag = release_of(image, question.software), parse_image_tag(image)
        if month is not None:
            yield image, month.cuda, frozenset({month.driver, *month.other_drivers})
        elif tag.cuda is not None:
            yield image, tag.cuda, frozenset()
    # Wheels without code for the GPU are refused for that: no driver would help them.
    known, python = question.software.torch, environment.python
    if python is not None and not question.rehearsed and not torch_misfit(python, gpu, known):
        wheels = wheels_of(python, known)
        if wheels is not None and wheels.cuda is not None:
            yield f"PyTorch ({wheels.build})", wheels.cuda, frozenset()
