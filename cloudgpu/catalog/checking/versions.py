"""Check that versions can be parsed, before other checks compare them."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.checking.known import CatalogData, DataProblem

_VERSION: Final = re.compile(r"\d+(\.\d+)*", re.ASCII)


def check_versions(data: CatalogData) -> Iterator[DataProblem]:
    """Check that all versions and compute capabilities consist of numbers separated by dots."""
    for where, text in _versions(data):
        if text is not None and not _VERSION.fullmatch(text):
            yield DataProblem(where, f"{text!r} is not a version")


def _versions(data: CatalogData) -> Iterator[tuple[str, str | None]]:
    for gpu in data.catalog.gpus.values():
        yield from _each(gpu.name, gpu.compute_capability, gpu.first_cuda, gpu.first_torch_without, gpu.last_torch)
    for month in data.software.ngc.values():
        yield from _each(month.month, month.cuda, month.lowest)
    for image in data.software.images:
        yield from _each(image.image, image.lowest, image.highest)
    for wheels in data.software.torch:
        yield from _each(
            wheels.cuda, wheels.first, wheels.last, wheels.default_from, wheels.default_to, *wheels.capabilities
        )
    for minimum in data.software.fabric.values():
        yield from _each(minimum.instance_type, minimum.efa_installer, minimum.ofi_nccl, minimum.nccl, minimum.cuda)


def _each(where: str, *texts: str | None) -> Iterator[tuple[str, str | None]]:
    return ((where, text) for text in texts)
