"""Check that system, container, data and work directory fit on the root disk."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.image_sizes import unpacked_gib
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.text import command

SYSTEM_GIB: Final = 10
"""The machine image with driver and packages, roughly."""
CONTAINERS_GIB: Final = 150
"""A root disk size that is enough to pull any of NVIDIA's framework containers."""
_WORKDIR_LARGE: Final = 2 * 2**30
_GIB: Final = 2**30
_UNPACKED: Final = 2
"""Layers of frameworks take about twice their packed size on a disk."""
_PULLING: Final = _UNPACKED + 1
"""Packed and unpacked ones lie side by side for a while."""
_ARCHIVED: Final = 3
"""Times the unpacked size: the image, the engine's copy of it, and the archive that the other nodes get."""


@check("image-size", "error", "A container that does not fit on the disk fails only after minutes of pulling.")
def container_fits(case: Case) -> Iterator[Issue]:
    """A disk smaller than system and image together. Layers are packed and unpacked side by side for a while."""
    container, disk = case.question.recipe.environment.container, int(case.question.recipe.resources.disk)
    if container is None:
        return
    packed, size = _packed_bytes(case), unpacked_gib(container.image)
    if container.share == "head" and case.plan.nodes > 1:
        yield from _archive_fits(case, container.image)
    elif packed is not None:
        needed = SYSTEM_GIB + _up(_PULLING * packed)
        if needed > disk:
            message = (
                f"{container.image} has {gib(packed)} packed, about three times that while it is unpacked, "
                f"and the disk has {disk} GiB"
            )
            yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))
    elif size is None:
        if disk < CONTAINERS_GIB:
            message = f"the size of {container.image} is unknown, and the disk has {disk} GiB"
            yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif SYSTEM_GIB + 2 * size > disk:
        message = f"{container.image} takes about {size} GiB, twice that during the pull, but the disk has {disk} GiB"
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"))


def _archive_fits(case: Case, image: str) -> Iterator[Issue]:
    """Nodes that hand an image on need room for it three times."""
    unpacked, disk = _container_gib(case), int(case.question.recipe.resources.disk)
    needed = SYSTEM_GIB + _ARCHIVED * unpacked
    if not unpacked and disk < CONTAINERS_GIB:
        message = f"the size of {image} is unknown, and the disk has {disk} GiB"
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif needed > disk:
        message = (
            f"{image} takes about {unpacked} GiB, three times that while the first node hands it on, "
            f"and the disk has {disk} GiB"
        )
        yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))


@check("disk", "error", "Data that does not fit on the disk fails only after hours of copying.")
def data_fits(case: Case) -> Iterator[Issue]:
    """Report datasets, work directory, container and system that exceed the disk together."""
    recipe, survey = case.question.recipe, case.question.quotes.survey
    copied = {one.name for one in recipe.data if one.mode == "copy"}
    seen = {name: one for name, one in survey.datasets.items() if name in copied and one.size_bytes}
    sizes = [(name, one.size_bytes, one.whole) for name, one in seen.items()]
    data = sum(size or 0 for _, size, _ in sizes) + (survey.workdir_bytes or 0)
    needed, disk = _up(data) + SYSTEM_GIB + _container_gib(case), int(recipe.resources.disk)
    if data and needed > disk:
        parts = ", ".join(f"{name} {'' if whole else 'at least '}{gib(size or 0)}" for name, size, whole in sizes)
        message = f"the disk has {disk} GiB, but at least {needed} GiB are needed ({parts or 'the work directory'})"
        yield Issue(message, command("--set", f"resources.disk={needed + needed // 10 + 1}GiB"))


@check("workdir", "warning", "The work directory is uploaded from your machine to every node.")
def workdir_small(case: Case) -> Iterator[Issue]:
    """Report a work directory of gigabytes, which probably contains data or checkpoints."""
    size = case.question.quotes.survey.workdir_bytes
    if size is not None and size > _WORKDIR_LARGE:
        message = f"the work directory has {gib(size)}, all of which is uploaded to every node"
        yield Issue(message, "exclude what the run does not read with .cloudgpuignore; declare data as a dataset")


def gib(size_bytes: int) -> str:
    """`1.5 GiB`."""
    return f"{size_bytes / _GIB:.1f} GiB"


def _container_gib(case: Case) -> int:
    container, packed = case.question.recipe.environment.container, _packed_bytes(case)
    if container is None:
        return 0
    return unpacked_gib(container.image) or 0 if packed is None else _up(_UNPACKED * packed)


def _packed_bytes(case: Case) -> int | None:
    """What the registry says of the size of the recipe's image; None where nobody asked it."""
    container = case.question.recipe.environment.container
    seen = None if container is None else case.question.quotes.survey.of_image(container.image)
    return None if seen is None else seen.packed_bytes


def _up(size_bytes: int) -> int:
    """Whole GiB."""
    return -(-size_bytes // _GIB)
