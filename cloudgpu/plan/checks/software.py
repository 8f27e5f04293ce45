"""Checks of software that deserves attention without excluding a type."""

import re
from collections.abc import Iterator

from cloudgpu.catalog.compatibility import release_of
from cloudgpu.catalog.images import carried_driver
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.checks.software_container import fitting
from cloudgpu.plan.checks.software_torch import nearest_build, packages_requiring_torch, torch_misfit


@check("container-code", "warning", "A container made before the GPU was known runs slowly, or not as it was tested.")
def container_untuned(case: Case) -> Iterator[Issue]:
    """Report a container that runs the GPU only in compatibility mode, or whose content is unknown."""
    container = case.question.recipe.environment.container
    if container is None:
        return
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        found = fitting(container.image, case.question.catalog.gpus[name], case.question)
        if found.fit == "untuned":
            yield Issue(f"{container.image} is not tuned for {name}: {found.why}")
        elif found.fit is None:
            yield Issue(f"whether {container.image} holds code for {name} is unknown: {found.why}", severity="unknown")


@check("torch-on-aws", "note", "What is rehearsed without a GPU may have no code for the GPU that is rehearsed for.")
def torch_rehearsed(case: Case) -> Iterator[Issue]:
    """Report PyTorch wheels without support for the GPU as a note in a rehearsal, which runs on the CPU."""
    python = case.question.recipe.environment.python
    if python is None or not case.question.rehearsed:
        return
    known = case.question.software.torch
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        gpu = case.question.catalog.gpus[name]
        wrong = torch_misfit(python, gpu, known)
        if wrong:
            yield Issue(f"on AWS: {wrong}", nearest_build(python, gpu, known))


@check(
    "torch-brought", "unknown", "A package that requires PyTorch brings the newest, which may have no code for the GPU."
)
def torch_brought(case: Case) -> Iterator[Issue]:
    """Report a PyTorch that another package requires, and whose latest version does not support the GPU."""
    python = case.question.recipe.environment.python
    brings = packages_requiring_torch(python.requirements) if python is not None else ()
    if python is None or not brings or case.question.rehearsed:
        return
    newest = python.model_copy(update={"requirements": ("torch",)})
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        if torch_misfit(newest, case.question.catalog.gpus[name], case.question.software.torch):
            message = (
                f"{', '.join(brings)} may bring a PyTorch without code for {name}: which one, the recipe leaves open"
            )
            yield Issue(message, "name torch in the requirements")


@check("driver-known", "unknown", "What runs on a node depends on a driver that nobody has looked at.")
def driver_known(case: Case) -> Iterator[Issue]:
    """Report a custom machine image whose driver is unknown."""
    image = case.question.recipe.resources.image
    carried = carried_driver(image) if image else None
    if carried is not None and carried.branch is None:
        yield Issue(
            f"whether {image} carries a driver is unknown: one that it has stays, else the bootstrap installs one"
        )


@check("driver-given", "error", "A driver that is asked for beside an image with a driver of its own is not installed.")
def driver_ignored(case: Case) -> Iterator[Issue]:
    """Report `resources.driver` with a machine image that has its own driver."""
    resources = case.question.recipe.resources
    carried = carried_driver(resources.image) if resources.image else None
    if resources.driver is not None and carried is not None and carried.branch is not None:
        message = f"resources.driver is {resources.driver}, but {resources.image} carries R{carried.branch}"
        yield Issue(message, "--set resources.image=")


@check("efa-software", "warning", "EFA with software that is older than its hardware is slow, or hangs.")
def efa_software(case: Case) -> Iterator[Issue]:
    """Report a container whose CUDA is too old for EFA on the type, and what else it must contain."""
    container = case.question.recipe.environment.container
    if container is None:
        return
    release = release_of(container.image, case.question.software)
    for name in dict.fromkeys(
        candidate.instance_type for candidate in case.field.candidates if candidate.efa_interfaces
    ):
        minimum = case.question.software.fabric.get(name)
        if minimum is None:
            continue
        if minimum.cuda is not None and release is not None and _older(release.cuda, minimum.cuda):
            message = f"EFA on {name} needs CUDA {minimum.cuda} or newer, and {container.image} holds {release.cuda}"
            yield Issue(message, "--set resources.network=tcp")
        parts = [
            f"{what} {version} or newer"
            for what, version in (("NCCL", minimum.nccl), ("aws-ofi-nccl", minimum.ofi_nccl))
            if version is not None
        ]
        if parts:
            message = f"EFA on {name} needs {' and '.join(parts)} in the container"
            yield Issue(message, "images/efa-nccl lays both over a framework image", "note")


def _older(text: str, other: str) -> bool:
    """Return True if a version is older than another, such as `12.6.3` and `12.8`."""
    return _numbers(text) < _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if re.fullmatch("[0-9]{1,9}", part))
