"""Check the container, PyTorch and driver for problems that do not exclude an instance type."""

import re
from collections.abc import Iterator

from cloudgpu.catalog.catalog import carried_driver
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.checks.container_and_driver import image_support
from cloudgpu.plan.checks.software_torch import nearest_build, packages_requiring_torch, torch_misfit


@check("container-code", "warning", "A container older than the GPU runs slowly or behaves differently than tested.")
def container_untuned(case: CheckInput) -> Iterator[Issue]:
    """Report images that contain code only for an older GPU, or whose supported GPUs are unknown."""
    container = case.question.recipe.environment.container
    if container is None:
        return
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        support = image_support(container.image, case.question.catalog.gpus[name], case.question)
        if support.fit == "untuned":
            yield Issue(f"{container.image} is not tuned for {name}: {support.why}")
        elif support.fit is None:
            yield Issue(
                f"cannot tell whether {container.image} contains code for {name}: {support.why}", severity="unknown"
            )


@check(
    "torch-on-aws",
    "note",
    "A rehearsal runs without a GPU, so it cannot reveal that PyTorch does not support the GPU used on AWS.",
    on_hosts=False,
)
def torch_rehearsed(case: CheckInput) -> Iterator[Issue]:
    """Report PyTorch wheels that would fail on AWS. A rehearsal runs them without a GPU and cannot reveal this."""
    python = case.question.recipe.environment.python
    if python is None or not case.question.rehearsed:
        return
    releases = case.question.software.torch
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        gpu = case.question.catalog.gpus[name]
        problem = torch_misfit(python, gpu, releases)
        if problem:
            yield Issue(f"on AWS: {problem}", nearest_build(python, gpu, releases))


@check(
    "torch-brought",
    "unknown",
    "A package that depends on PyTorch installs the newest release, which may not support the GPU.",
)
def torch_as_dependency(case: CheckInput) -> Iterator[Issue]:
    """Report that PyTorch is installed as a dependency if its newest release does not support the GPU."""
    python = case.question.recipe.environment.python
    packages = packages_requiring_torch(python.requirements) if python is not None else ()
    if python is None or not packages or case.question.rehearsed:
        return
    newest = python.model_copy(update={"requirements": ("torch",)})
    for name in dict.fromkeys(candidate.gpu for candidate in case.field.candidates):
        if torch_misfit(newest, case.question.catalog.gpus[name], case.question.software.torch):
            packages_text = ", ".join(packages)
            message = (
                f"{packages_text} may install a PyTorch release that does not support {name}, "
                "because the recipe does not pin the version"
            )
            yield Issue(message, "add torch to the requirements")


@check(
    "driver-known", "unknown", "The driver of a custom machine image is unknown until the node boots.", on_hosts=False
)
def driver_known(case: CheckInput) -> Iterator[Issue]:
    """Report a custom machine image whose driver is unknown."""
    image = case.question.recipe.resources.image
    preinstalled = carried_driver(image) if image else None
    if preinstalled is not None and preinstalled.branch is None:
        yield Issue(f"cannot tell whether {image} has a driver: the bootstrap installs one if none is present")


@check(
    "driver-given",
    "error",
    "A requested driver is not installed on a machine image that already has one.",
    on_hosts=False,
)
def driver_ignored(case: CheckInput) -> Iterator[Issue]:
    """Report `resources.driver` together with a machine image that already has a driver."""
    resources = case.question.recipe.resources
    preinstalled = carried_driver(resources.image) if resources.image else None
    if resources.driver is not None and preinstalled is not None and preinstalled.branch is not None:
        message = f"resources.driver is {resources.driver}, but {resources.image} already has R{preinstalled.branch}"
        yield Issue(message, "--set resources.image=")


@check("efa-software", "warning", "EFA is slow or hangs if its software is older than its hardware.", on_hosts=False)
def efa_software(case: CheckInput) -> Iterator[Issue]:
    """Report a container whose CUDA version is too old for EFA, and the libraries that the container must include."""
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
            message = f"EFA on {name} needs CUDA {minimum.cuda} or newer, but {container.image} has {release.cuda}"
            yield Issue(message, "--set resources.network=tcp")
        parts = [
            f"{library} {version} or newer"
            for library, version in (("NCCL", minimum.nccl), ("aws-ofi-nccl", minimum.ofi_nccl))
            if version is not None
        ]
        if parts:
            message = f"EFA on {name} needs {' and '.join(parts)} in the container"
            yield Issue(message, "add the libraries to a framework image with images/efa-nccl", "note")


def _older(version: str, minimum: str) -> bool:
    """Return True if a version is older than the minimum. Compares numbers, so that `12.8` is older than `12.10`."""
    return _numbers(version) < _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if re.fullmatch("[0-9]{1,9}", part))
