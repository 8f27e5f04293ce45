"""Can the software that the recipe names run on that GPU at all?"""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from cloudgpu.catalog import Gpu, InstanceType
from cloudgpu.plan.question import Question

Made = TypeVar("Made")
Version = tuple[int, ...]

_NGC = re.compile(r"^nvcr\.io/nvidia/[a-z0-9-]+:(\d\d\.\d\d)(?:-|$)")
_REQUIREMENT = re.compile(r"^\s*torch\s*(?:\[[^\]]*\])?\s*(?P<bounds>[^;@]*)", re.IGNORECASE)
_BOUND = re.compile(r"(===|==|~=|>=|<=|!=|>|<)\s*(\d+(?:\.\d+)*)")


def container_unfit(question: Question, kind: InstanceType, made: Callable[[str, str, str], Made]) -> Iterator[Made]:
    """The container image is too new or too old for the GPU."""
    container, gpu = question.recipe.environment.container, question.catalog.gpus[kind.gpu]
    match = _NGC.match(container.image) if container else None
    if container is None or match is None:
        return
    month, near = match[1], ""
    if gpu.last_ngc is not None and month > gpu.last_ngc:
        near = gpu.last_ngc
    elif gpu.first_ngc is not None and month < gpu.first_ngc:
        near = gpu.first_ngc
    if near:
        word = "last" if near == gpu.last_ngc else "first"
        image = container.image.replace(f":{month}", f":{near}", 1)
        yield made(
            "image",
            f"{container.image} cannot run on {gpu.name} ({kind.name}): the {word} NGC month for it is {near}",
            f"--set environment.container.image={image}",
        )


def torch_misfit(requirements: tuple[str, ...], gpu: Gpu) -> str:
    """Why `torch` as required would not run on this GPU; empty when it would, or when nobody can tell."""
    bounds = [bounds for bounds in map(_torch_bounds, requirements) if bounds is not None]
    if gpu.first_torch_without is None or gpu.last_torch is None or not bounds:
        return ""
    lowest, below = _lowest(bounds[0]), _stays_below(bounds[0], _version(gpu.first_torch_without))
    if lowest > (*_version(gpu.last_torch), 999):
        return f"no PyTorch after {gpu.last_torch} runs on {gpu.name}"
    if not below:
        return (
            f"the default wheels of PyTorch {gpu.first_torch_without} and later do not run on {gpu.name}, "
            "and these requirements allow them"
        )
    return ""


def _torch_bounds(requirement: str) -> list[tuple[str, Version]] | None:
    match = _REQUIREMENT.match(requirement)
    if match is None or not re.match(r"^\s*torch\s*(\[|[=~<>!;@]|$)", requirement, re.IGNORECASE):
        return None
    return [(operator, _version(version)) for operator, version in _BOUND.findall(match["bounds"])]


def _lowest(bounds: list[tuple[str, Version]]) -> Version:
    return max((version for operator, version in bounds if operator in ("==", "===", "~=", ">=", ">")), default=())


def _stays_below(bounds: list[tuple[str, Version]], limit: Version) -> bool:
    """Whether no version from `limit` on is allowed."""
    for operator, version in bounds:
        if operator == "<" and version <= limit:
            return True
        if operator in ("==", "===", "<=") and version < limit:
            return True
        if operator == "~=" and _next_of_series(version) <= limit:
            return True
    return False


def _next_of_series(version: Version) -> Version:
    """The first version that `~=` no longer allows: 2.7 for 2.6.0, 3 for 2.6."""
    series = version[:-1] or version
    return (*series[:-1], series[-1] + 1)


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))
