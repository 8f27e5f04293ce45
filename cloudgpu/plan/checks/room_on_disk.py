"""What has to fit on the root disk of every node: the system, the container, the data, the work directory."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.image_sizes import unpacked_gib
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.recipe.schema import Recipe

SYSTEM_GIB: Final = 10
"""The machine image with driver and packages, roughly."""
CONTAINERS_GIB: Final = 150
"""A root disk on which any of NVIDIA's framework containers has room, with its layers while it is pulled."""
_WORKDIR_LARGE: Final = 2 * 2**30
_GIB: Final = 2**30


@check("image-size", "error", "A container that does not fit on the disk fails after minutes of pulling.")
def container_fits(case: Case) -> Iterator[Found]:
    """A disk smaller than system and image together. Layers are packed and unpacked side by side for a while."""
    container, disk = case.question.recipe.environment.container, int(case.question.recipe.resources.disk)
    if container is None:
        return
    size = unpacked_gib(container.image)
    if size is None:
        if disk < CONTAINERS_GIB:
            message = f"the size of {container.image} is unknown, and the disk has {disk} GiB"
            yield Found(message, f"--set resources.disk={CONTAINERS_GIB}GiB", "unknown")
    elif SYSTEM_GIB + 2 * size > disk:
        message = (
            f"{container.image} takes about {size} GiB, twice that while it is pulled, and the disk has {disk} GiB"
        )
        yield Found(message, f"--set resources.disk={CONTAINERS_GIB}GiB")


@check("disk", "error", "Data that does not fit on the disk fails after it was copied for hours.")
def data_fits(case: Case) -> Iterator[Found]:
    """Datasets, work directory, container and system together are more than the disk."""
    recipe, survey = case.question.recipe, case.question.quotes.survey
    sizes = [(name, seen.size_bytes, seen.whole) for name, seen in survey.datasets.items() if seen.size_bytes]
    data = sum(size or 0 for _, size, _ in sizes) + (survey.workdir_bytes or 0)
    needed, disk = -(-data // _GIB) + SYSTEM_GIB + _container_gib(recipe), int(recipe.resources.disk)
    if data and needed > disk:
        parts = ", ".join(f"{name} {'' if whole else 'at least '}{gib(size or 0)}" for name, size, whole in sizes)
        message = f"the disk has {disk} GiB, and at least {needed} GiB are needed ({parts or 'the work directory'})"
        yield Found(message, f"--set resources.disk={needed + needed // 10 + 1}GiB")


@check("workdir", "warning", "A work directory goes over the caller's own line, to every node.")
def workdir_small(case: Case) -> Iterator[Found]:
    """A work directory of gigabytes: data or checkpoints that were meant to stay."""
    size = case.question.quotes.survey.workdir_bytes
    if size is not None and size > _WORKDIR_LARGE:
        message = f"the work directory has {gib(size)}, and every node is sent all of it"
        yield Found(message, "leave out by .cloudgpuignore what the run does not read; bring data as a dataset")


def gib(size_bytes: int) -> str:
    """`1.5 GiB`."""
    return f"{size_bytes / _GIB:.1f} GiB"


def _container_gib(recipe: Recipe) -> int:
    container = recipe.environment.container
    return 0 if container is None else unpacked_gib(container.image) or 0
