"""Check NGC releases and framework images."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from cloudgpu.catalog.checking.known import CatalogData, DataProblem, parse_version
from cloudgpu.catalog.compatibility import FrameworkImage, NgcMonth, month_of
from cloudgpu.catalog.hardware import Gpu

_MONTH: Final = re.compile(r"\d\d\.(0[1-9]|1[0-2])")
_TAGGED: Final = re.compile(r"[^\s:]+/[^\s:]+:[\w.-]+")


def check_months(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every NGC release is valid, has a source, and lists only older driver branches as alternatives."""
    for month in data.software.ngc.values():
        if not _MONTH.fullmatch(month.month):
            yield DataProblem(month.month, "not a valid release; expected YY.MM")
        if not month.source:
            yield DataProblem(month.month, "it has no source")
        if any(other >= month.driver for other in month.other_drivers):
            yield DataProblem(month.month, f"its alternative drivers are not all older than R{month.driver}")


def check_month_order(data: CatalogData) -> Iterator[DataProblem]:
    """Check that releases are in order, and that CUDA, driver and lowest compute capability never decrease."""
    for before, after in pairwise(data.software.ngc.values()):
        if after.month <= before.month:
            yield DataProblem(after.month, f"it is listed after {before.month}, which is not an earlier release")
        if parse_version(after.cuda) < parse_version(before.cuda):
            message = f"its CUDA version {after.cuda} is older than {before.cuda} in release {before.month}"
            yield DataProblem(after.month, message)
        if after.driver < before.driver:
            message = f"its driver R{after.driver} is older than R{before.driver} in release {before.month}"
            yield DataProblem(after.month, message)
        if before.lowest and after.lowest and parse_version(after.lowest) < parse_version(before.lowest):
            message = (
                f"its minimum compute capability {after.lowest} is lower than {before.lowest} in release {before.month}"
            )
            yield DataProblem(after.month, message)


def check_months_for_gpus(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every NGC release in a GPU's supported range can run on the GPU."""
    for gpu in data.catalog.gpus.values():
        for month in data.software.ngc.values():
            if gpu.first_ngc is not None and gpu.first_ngc <= month.month <= (gpu.last_ngc or month.month):
                yield from _misfits(gpu, month)


def _misfits(gpu: Gpu, month: NgcMonth) -> Iterator[DataProblem]:
    if month.lowest is not None and parse_version(gpu.compute_capability) < parse_version(month.lowest):
        yield DataProblem(
            gpu.name, f"release {month.month} is in its range but needs compute capability {month.lowest}"
        )
    cuda = parse_version(month.cuda)
    if gpu.first_cuda is not None and cuda[:2] < parse_version(gpu.first_cuda):
        yield DataProblem(
            gpu.name,
            f"release {month.month} is in its range with CUDA {month.cuda}, but the GPU needs {gpu.first_cuda}",
        )
    if gpu.last_cuda_major is not None and cuda[0] > gpu.last_cuda_major:
        last = f"the last CUDA version for the GPU is {gpu.last_cuda_major}"
        yield DataProblem(gpu.name, f"release {month.month} is in its range with CUDA {month.cuda}, but {last}")
    if gpu.last_driver is not None and min((month.driver, *month.other_drivers)) > gpu.last_driver:
        last = f"the last driver branch for the GPU is R{gpu.last_driver}"
        yield DataProblem(gpu.name, f"release {month.month} is in its range with driver R{month.driver}, but {last}")


def check_images(data: CatalogData) -> Iterator[DataProblem]:
    """Check every image's tag, source, compute capabilities, and the architectures for which it is the last image."""
    last: set[tuple[str, str]] = set()
    for image in data.software.images:
        if not _TAGGED.fullmatch(image.image):
            yield DataProblem(image.image, "not an image with a tag")
        if not image.source:
            yield DataProblem(image.image, "it has no source")
        if image.lowest and image.highest and parse_version(image.highest) < parse_version(image.lowest):
            yield DataProblem(image.image, f"its native code ranges from {image.lowest} down to {image.highest}")
        yield from _beyond_its_month(image, data)
        for architecture in image.last_for:
            if (image.framework, architecture) in last:
                message = f"another image is also marked as the last {image.framework} image for {architecture}"
                yield DataProblem(image.image, message)
            last.add((image.framework, architecture))
            if not any(_serves(image, gpu) for gpu in data.catalog.gpus.values() if gpu.architecture == architecture):
                message = f"it is marked as the last image for {architecture}, but does not support this architecture"
                yield DataProblem(image.image, message)


def _beyond_its_month(image: FrameworkImage, data: CatalogData) -> Iterator[DataProblem]:
    month = data.software.ngc.get(month_of(image.image))
    if month and month.lowest and image.lowest and parse_version(image.lowest) < parse_version(month.lowest):
        message = (
            f"its lowest compute capability is {image.lowest}, but its NGC release requires at least {month.lowest}"
        )
        yield DataProblem(image.image, message)


def _serves(image: FrameworkImage, gpu: Gpu) -> bool:
    if image.lowest is None or parse_version(gpu.compute_capability) < parse_version(image.lowest):
        return False
    return image.highest is None or parse_version(gpu.compute_capability)[0] <= parse_version(image.highest)[0]
