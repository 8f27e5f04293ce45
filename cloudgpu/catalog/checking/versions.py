"""Check that versions can be parsed, before other checks compare them."""

import re
from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.checking.known import DataProblem, Known

_VERSION: Final = re.compile(r"\d+(\.\d+)*", re.ASCII)


def versions_readable(given: Known) -> Iterator[DataProblem]:
    """Check that versions of CUDA, drivers, PyTorch and compute capabilities are numbers separated by dots."""
    for where, told in _told(given):
        if told is not None and not _VERSION.fullmatch(told):
            yield DataProblem(where, f"{told!r} is no version")


def _told(given: Known) -> Iterator[tuple[str, str | None]]:
    for gpu in given.catalog.gpus.values():
        yield from _each(gpu.name, gpu.compute_capability, gpu.first_cuda, gpu.first_torch_without, gpu.last_torch)
    for month in given.software.ngc.values():
        yield from _each(month.month, month.cuda, month.lowest)
    for image in given.software.images:
        yield from _each(image.image, image.lowest, image.highest)
    for wheels in given.software.torch:
        yield from _each(
            wheels.cuda, wheels.first, wheels.last, wheels.default_from, wheels.default_to, *wheels.capabilities
        )
    for least in given.software.fabric.values():
        yield from _each(least.instance_type, least.efa_installer, least.ofi_nccl, least.nccl, least.cuda)


def _each(where: str, *told: str | None) -> Iterator[tuple[str, str | None]]:
    return ((where, text) for text in told)
