"""Check PyTorch wheels and EFA minimum versions for overlapping ranges and for consistency with the GPUs."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from cloudgpu.catalog.checking.known import CatalogData, DataProblem, Version, parse_version, runs_on
from cloudgpu.catalog.compatibility import TorchWheels
from cloudgpu.catalog.hardware import Gpu

_OPEN: Final[Version] = (9999,)


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
        serving = [wheels for wheels in rows if _serves(wheels, gpu)]
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


def _serves(wheels: TorchWheels, gpu: Gpu) -> bool:
    return any(runs_on(gpu.compute_capability, code) for code in wheels.capabilities)


def _first_default_without(rows: Sequence[TorchWheels], gpu: Gpu) -> str | None:
    """Return the first PyTorch version whose default wheel dropped the GPU; None if the newest wheel supports the GPU.

    Only versions after the last default wheel that supports the GPU are considered.
    """
    dropped: str | None = None
    defaults = [(parse_version(wheels.default_from), wheels) for wheels in rows if wheels.default_from is not None]
    for _, wheels in sorted(defaults, key=lambda pair: pair[0], reverse=True):
        if _serves(wheels, gpu):
            return dropped
        dropped = wheels.default_from
    return dropped
