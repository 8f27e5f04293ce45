"""Checks of PyTorch wheels and of minimum versions for EFA: unambiguous, and consistent with the GPUs."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from cloudgpu.catalog.checking.known import DataProblem, Known, Version, runs_on, version
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.software import TorchWheels

_OPEN: Final[Version] = (9999,)


def wheels_apart(given: Known) -> Iterator[DataProblem]:
    """Check that no PyTorch version has two GPU lists for one CUDA, or two defaults."""
    rows = given.software.torch
    for wheels in rows:
        if not wheels.source:
            yield DataProblem(_name(wheels), "nothing says where it comes from")
        if _end(wheels.last) < version(wheels.first):
            yield DataProblem(_name(wheels), f"it ends with {wheels.last}")
        rising = sorted(set(wheels.capabilities), key=version)
        if list(wheels.capabilities) != rising or not rising:
            yield DataProblem(_name(wheels), "its compute capabilities are not in order")
        if wheels.default_from is not None and not _inside(wheels):
            yield DataProblem(_name(wheels), f"it is the default from {wheels.default_from} to {wheels.default_to}")
    for cuda in dict.fromkeys(wheels.cuda for wheels in rows):
        spans = [(version(wheels.first), _end(wheels.last)) for wheels in rows if wheels.cuda == cuda]
        yield from _overlaps(cuda, spans)
    yield from _overlaps("default wheels", _default_spans(rows))


def wheels_agree(given: Known) -> Iterator[DataProblem]:
    """Check that GPUs and wheels agree about PyTorch support."""
    rows = given.software.torch
    for gpu in given.catalog.gpus.values():
        serving = [wheels for wheels in rows if _serves(wheels, gpu)]
        ends = [wheels.last for wheels in serving]
        last = max((end for end in ends if end is not None), key=version, default=None)
        if None in ends:
            last = None
        if last != gpu.last_torch:
            yield DataProblem(gpu.name, f"the wheels end with {last or 'none yet'}, and it says {gpu.last_torch}")
        without = _first_default_without(rows, gpu)
        if without != gpu.first_torch_without:
            yield DataProblem(gpu.name, f"default wheels lack it from {without}, and it says {gpu.first_torch_without}")


def fabric_sound(given: Known) -> Iterator[DataProblem]:
    """Check that minimum versions are valid and belong to types with EFA, with a CUDA that supports their GPU."""
    for minimum in given.software.fabric.values():
        kind = given.catalog.types.get(minimum.instance_type)
        if kind is None or kind.efa_interfaces == 0:
            yield DataProblem(minimum.instance_type, "it has a minimum for EFA and no EFA")
            continue
        if not minimum.source:
            yield DataProblem(minimum.instance_type, "nothing says where its minimum for EFA comes from")
        gpu = given.catalog.gpus.get(kind.gpu)
        if gpu is not None and _end(minimum.cuda) < version(gpu.first_cuda or "0"):
            yield DataProblem(minimum.instance_type, f"CUDA {minimum.cuda} does not know {kind.gpu}")


def _name(wheels: TorchWheels) -> str:
    return f"{wheels.cuda} of PyTorch {wheels.first}"


def _end(text: str | None) -> Version:
    return version(text) if text else _OPEN


def _inside(wheels: TorchWheels) -> bool:
    begin, end = version(wheels.default_from or wheels.first), _end(wheels.default_to)
    return version(wheels.first) <= begin <= end <= _end(wheels.last)


def _default_spans(rows: Sequence[TorchWheels]) -> list[tuple[Version, Version]]:
    return [
        (version(wheels.default_from), _end(wheels.default_to)) for wheels in rows if wheels.default_from is not None
    ]


def _overlaps(name: str, spans: list[tuple[Version, Version]]) -> Iterator[DataProblem]:
    for (_, end), (begin, _) in pairwise(sorted(spans)):
        if begin <= end:
            yield DataProblem(name, f"two rows for PyTorch {'.'.join(map(str, begin))}")


def _serves(wheels: TorchWheels, gpu: Gpu) -> bool:
    return any(runs_on(gpu.compute_capability, code) for code in wheels.capabilities)


def _first_default_without(rows: Sequence[TorchWheels], gpu: Gpu) -> str | None:
    """Return the first default build that dropped the GPU. Builds before the GPU was supported do not count."""
    lost: str | None = None
    defaults = [(version(wheels.default_from), wheels) for wheels in rows if wheels.default_from is not None]
    for _, wheels in sorted(defaults, key=lambda pair: pair[0], reverse=True):
        if _serves(wheels, gpu):
            return lost
        lost = wheels.default_from
    return lost
