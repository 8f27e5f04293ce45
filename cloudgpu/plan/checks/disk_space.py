"""Check that the system, container, data and work directory fit on the root disk."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.image_sizes import unpacked_gib
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.text import command

SYSTEM_GIB: Final = 10
"""Approximate size of the machine image with driver and packages."""
CONTAINERS_GIB: Final = 150
"""Root disk size that is sufficient to pull any of NVIDIA's framework containers."""
_WORKDIR_LARGE: Final = 2 * 2**30
_GIB: Final = 2**30
_UNPACKED: Final = 2
"""Approximate ratio of the unpacked size of layers to their compressed size."""
_PULLING: Final = _UNPACKED + 1
"""Ratio of the disk space needed during a pull, for compressed and unpacked layers, to the compressed size."""
_ARCHIVED: Final = 3
"""Copies of the unpacked image on disk: the image itself, Docker's copy, and the archive sent to the other nodes."""


@check("root-disk", "error", "AWS rejects a root disk that is smaller than the snapshot of the machine image.")
def machine_image_fits(case: CheckInput) -> Iterator[Issue]:
    """Report a root disk that is smaller than the snapshot of a candidate's machine image."""
    question, disk = case.question, int(case.question.recipe.resources.disk)
    images = dict.fromkeys(
        (question.image(question.catalog.types[candidate.instance_type], candidate.region), candidate.region)
        for candidate in case.field.candidates
    )
    sizes = [(*key, question.quotes.root_disks.get(key, 0)) for key in images]
    needed = max((gib for _, _, gib in sizes), default=0)
    for image, region, gib in sizes:
        if gib > disk:
            message = f"the disk has {disk} GiB, but {image} in {region} needs at least {gib} GiB"
            yield Issue(message, command("--set", f"resources.disk={needed}GiB"))


@check("image-size", "error", "A container that does not fit on the disk fails only after minutes of pulling.")
def container_fits(case: CheckInput) -> Iterator[Issue]:
    """Report a disk that is too small for the system and the image during the pull."""
    container, disk = case.question.recipe.environment.container, int(case.question.recipe.resources.disk)
    if container is None:
        return
    packed, size = _packed_bytes(case), unpacked_gib(container.image)
    if container.share == "head" and case.plan.nodes > 1:
        yield from _archive_fits(case, container.image)
    elif packed is not None:
        needed = SYSTEM_GIB + _whole_gib(_PULLING * packed)
        if needed > disk:
            message = (
                f"{container.image} is {format_gib(packed)} compressed and needs about three times that "
                f"while it is unpacked, "
                f"but the disk has {disk} GiB"
            )
            yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))
    elif size is None:
        if disk < CONTAINERS_GIB:
            message = f"the size of {container.image} is unknown, so a disk of {disk} GiB may be too small"
            yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif SYSTEM_GIB + 2 * size > disk:
        message = (
            f"{container.image} takes about {size} GiB and twice that during the pull, but the disk has {disk} GiB"
        )
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"))


def _archive_fits(case: CheckInput, image: str) -> Iterator[Issue]:
    """Report a disk that is too small for the three copies on a node that sends the image to other nodes."""
    unpacked, disk = _container_gib(case), int(case.question.recipe.resources.disk)
    needed = SYSTEM_GIB + _ARCHIVED * unpacked
    if not unpacked and disk < CONTAINERS_GIB:
        message = f"the size of {image} is unknown, so a disk of {disk} GiB may be too small"
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif needed > disk:
        message = (
            f"{image} takes about {unpacked} GiB and three times that while the first node sends it to other nodes, "
            f"but the disk has {disk} GiB"
        )
        yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))


@check("disk", "error", "Data that does not fit on the disk fails only after hours of copying.")
def data_fits(case: CheckInput) -> Iterator[Issue]:
    """Report a disk that is too small for the datasets, work directory, container and system together."""
    recipe, survey = case.question.recipe, case.question.quotes.survey
    copied = {data.name for data in recipe.data if data.mode == "copy"}
    datasets = {name: dataset for name, dataset in survey.datasets.items() if name in copied and dataset.size_bytes}
    sizes = [(name, dataset.size_bytes, dataset.whole) for name, dataset in datasets.items()]
    data_bytes = sum(size or 0 for _, size, _ in sizes) + (survey.workdir_bytes or 0)
    needed, disk = _whole_gib(data_bytes) + SYSTEM_GIB + _container_gib(case), int(recipe.resources.disk)
    if data_bytes and needed > disk:
        parts = ", ".join(
            f"{name} {'' if whole else 'at least '}{format_gib(size or 0)}" for name, size, whole in sizes
        )
        message = f"the disk has {disk} GiB, but at least {needed} GiB are needed ({parts or 'the work directory'})"
        yield Issue(message, command("--set", f"resources.disk={needed + needed // 10 + 1}GiB"))


@check("workdir", "warning", "The work directory is uploaded from your machine to every node.")
def workdir_small(case: CheckInput) -> Iterator[Issue]:
    """Report a work directory larger than 2 GiB, which probably contains data or checkpoints."""
    size = case.question.quotes.survey.workdir_bytes
    if size is not None and size > _WORKDIR_LARGE:
        message = f"the work directory is {format_gib(size)}, all of which is uploaded to every node"
        yield Issue(message, "exclude unneeded files in .cloudgpuignore, and declare data as a dataset")


def format_gib(size_bytes: int) -> str:
    """Format a size in bytes as `1.5 GiB`."""
    return f"{size_bytes / _GIB:.1f} GiB"


def _container_gib(case: CheckInput) -> int:
    container, packed = case.question.recipe.environment.container, _packed_bytes(case)
    if container is None:
        return 0
    return unpacked_gib(container.image) or 0 if packed is None else _whole_gib(_UNPACKED * packed)


def _packed_bytes(case: CheckInput) -> int | None:
    """Return the compressed size of the recipe's image; None if the registry was not queried or reported no size."""
    container = case.question.recipe.environment.container
    image = None if container is None else case.question.quotes.survey.of_image(container.image)
    return None if image is None else image.packed_bytes


def _whole_gib(size_bytes: int) -> int:
    """Round up to whole GiB."""
    return -(-size_bytes // _GIB)
