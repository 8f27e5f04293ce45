"""Consistency checks of the catalog's software: NGC releases, images, PyTorch wheels and EFA minimum versions."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from catalogue_hardware_checks import CatalogData, DataProblem, Version, parse_version, runs_on

from cloudgpu.catalog.compatibility import FrameworkImage, NgcMonth, TorchWheels, month_of
from cloudgpu.catalog.hardware import Gpu

_MONTH: Final = re.compile(r"\d\d\.(0[1-9]|1[0-2])")
_TAGGED: Final = re.compile(r"[^\s:]+/[^\s:]+:[\w.-]+")
_OPEN: Final[Version] = (9999,)


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


def check_wheels(data: CatalogData) -> Iterator[DataProblem]:
    """Check every row of wheels, and that a PyTorch version has at most one row per CUDA version and one default."""
    rows = data.software.torch
    for wheels in rows:
        if not wheels.source:
            yield DataProblem(_name(wheels), "it has no source")
        if _end(wheels.last) < parse_version(wheels.first):
            yield DataProblem(_name(wheels), f"its last version {wheels.last} is older than its first")
        rising = sorted(set(wheels.capabilities), key=parse_version)
        if list(wheels.capabilities) != rising or not rising:
            yield DataProblem(_name(wheels), "its compute capabilities are not in order")
        if wheels.default_from is not None and not _inside(wheels):
            yield DataProblem(
                _name(wheels), f"it is the default from {wheels.default_from} to {wheels.default_to}, outside its range"
            )
    for cuda in dict.fromkeys(wheels.cuda for wheels in rows):
        spans = [(parse_version(wheels.first), _end(wheels.last)) for wheels in rows if wheels.cuda == cuda]
        yield from _overlaps(cuda, spans)
    yield from _overlaps("default wheels", _default_spans(rows))


def check_wheels_for_gpus(data: CatalogData) -> Iterator[DataProblem]:
    """Check that the PyTorch versions of each GPU match the wheels."""
    rows = data.software.torch
    for gpu in data.catalog.gpus.values():
        serving = [wheels for wheels in rows if _wheels_serve(wheels, gpu)]
        ends = [wheels.last for wheels in serving]
        last = max((end for end in ends if end is not None), key=parse_version, default=None)
        if None in ends:
            last = None
        if last != gpu.last_torch:
            yield DataProblem(
                gpu.name,
                f"its last_torch is {gpu.last_torch}, but {last} according to the wheels",
            )
        without = _first_default_without(rows, gpu)
        if without != gpu.first_torch_without:
            yield DataProblem(
                gpu.name,
                f"its first_torch_without is {gpu.first_torch_without}, but {without} according to the wheels",
            )


def check_efa_minimums(data: CatalogData) -> Iterator[DataProblem]:
    """Check that EFA minimum versions have a source, belong to a type with EFA, and support the type's GPU."""
    for minimum in data.software.fabric.values():
        instance_type = data.catalog.types.get(minimum.instance_type)
        if instance_type is None or instance_type.efa_interfaces == 0:
            yield DataProblem(minimum.instance_type, "it has EFA minimum versions but does not support EFA")
            continue
        if not minimum.source:
            yield DataProblem(minimum.instance_type, "its EFA minimum versions have no source")
        gpu = data.catalog.gpus.get(instance_type.gpu)
        if gpu is not None and _end(minimum.cuda) < parse_version(gpu.first_cuda or "0"):
            yield DataProblem(minimum.instance_type, f"CUDA {minimum.cuda} does not support {instance_type.gpu}")


def _name(wheels: TorchWheels) -> str:
    return f"{wheels.cuda} of PyTorch {wheels.first}"


def _end(text: str | None) -> Version:
    return parse_version(text) if text else _OPEN


def _inside(wheels: TorchWheels) -> bool:
    begin, end = parse_version(wheels.default_from or wheels.first), _end(wheels.default_to)
    return parse_version(wheels.first) <= begin <= end <= _end(wheels.last)


def _default_spans(rows: Sequence[TorchWheels]) -> list[tuple[Version, Version]]:
    return [
        (parse_version(wheels.default_from), _end(wheels.default_to))
        for wheels in rows
        if wheels.default_from is not None
    ]


def _overlaps(name: str, spans: list[tuple[Version, Version]]) -> Iterator[DataProblem]:
    for (_, end), (begin, _) in pairwise(sorted(spans)):
        if begin <= end:
            yield DataProblem(name, f"two rows cover PyTorch {'.'.join(map(str, begin))}")


def _wheels_serve(wheels: TorchWheels, gpu: Gpu) -> bool:
    return any(runs_on(gpu.compute_capability, code) for code in wheels.capabilities)


def _first_default_without(rows: Sequence[TorchWheels], gpu: Gpu) -> str | None:
    """Return the first PyTorch version whose default wheel dropped the GPU; None if the newest wheel supports the GPU.

    Only versions after the last default wheel that supports the GPU are considered.
    """
    dropped: str | None = None
    defaults = [(parse_version(wheels.default_from), wheels) for wheels in rows if wheels.default_from is not None]
    for _, wheels in sorted(defaults, key=lambda pair: pair[0], reverse=True):
        if _wheels_serve(wheels, gpu):
            return dropped
        dropped = wheels.default_from
    return dropped
