"""Checks of PyTorch wheels and of minimum versions for EFA: unambiguous, and consistent with the GPUs."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from cloudgpu.catalog.checking.known import Known, Problem, Version, runs_on, version
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.software import TorchWheels

_OPEN: Final[Version] = (9999,)


def wheels_apart(given: Known) -> Iterator[Problem]:
    """Check that no PyTorch version has two GPU lists for one CUDA, or two defaults."""
    rows = given.software.torch
    for one in rows:
        if not one.source:
            yield Problem(_name(one), "nothing says where it comes from")
        if _end(one.last) < version(one.first):
            yield Problem(_name(one), f"it ends with {one.last}")
        rising = sorted(set(one.capabilities), key=version)
        if list(one.capabilities) != rising or not rising:
            yield Problem(_name(one), "its compute capabilities are not in order")
        if one.default_from is not None and not _inside(one):
            yield Problem(_name(one), f"it is the default from {one.default_from} to {one.default_to}")
    for cuda in dict.fromkeys(one.cuda for one in rows):
        spans = [(version(one.first), _end(one.last)) for one in rows if one.cuda == cuda]
        yield from _overlaps(cuda, spans)
    yield from _overlaps("default wheels", _default_spans(rows))


def wheels_agree(given: Known) -> Iterator[Problem]:
    """Check that GPUs and wheels agree about PyTorch support."""
    rows = given.software.torch
    for gpu in given.catalog.gpus.values():
        serving = [one for one in rows if _serves(one, gpu)]
        ends = [one.last for one in serving]
        last = max((end for end in ends if end is not None), key=version, default=None)
        if None in ends:
            last = None
        if last != gpu.last_torch:
            yield Problem(gpu.name, f"the wheels end with {last or 'none yet'}, and it says {gpu.last_torch}")
        without = _first_default_without(rows, gpu)
        if without != gpu.first_torch_without:
            yield Problem(gpu.name, f"default wheels lack it from {without}, and it says {gpu.first_torch_without}")


def fabric_sound(given: Known) -> Iterator[Problem]:
    """Check that minimum versions are valid and belong to types with EFA, with a CUDA that supports their GPU."""
    for one in given.software.fabric.values():
        kind = given.catalog.types.get(one.instance_type)
        if kind is None or kind.efa_interfaces == 0:
            yield Problem(one.instance_type, "it has a minimum for EFA and no EFA")
            continue
        if not one.source:
            yield Problem(one.instance_type, "nothing says where its minimum for EFA comes from")
        gpu = given.catalog.gpus.get(kind.gpu)
        if gpu is not None and _end(one.cuda) < version(gpu.first_cuda or "0"):
            yield Problem(one.instance_type, f"CUDA {one.cuda} does not know {kind.gpu}")


def _name(one: TorchWheels) -> str:
    return f"{one.cuda} of PyTorch {one.first}"


def _end(text: str | None) -> Version:
    return version(text) if text else _OPEN


def _inside(one: TorchWheels) -> bool:
    begin, end = version(one.default_from or one.first), _end(one.default_to)
    return version(one.first) <= begin <= end <= _end(one.last)


def _default_spans(rows: Sequence[TorchWheels]) -> list[tuple[Version, Version]]:
    return [(version(one.default_from), _end(one.default_to)) for one in rows if one.default_from is not None]


def _overlaps(name: str, spans: list[tuple[Version, Version]]) -> Iterator[Problem]:
    for (_, end), (begin, _) in pairwise(sorted(spans)):
        if begin <= end:
            yield Problem(name, f"two rows for PyTorch {'.'.join(map(str, begin))}")


def _serves(one: TorchWheels, gpu: Gpu) -> bool:
    return any(runs_on(gpu.compute_capability, code) for code in one.capabilities)


def _first_default_without(rows: Sequence[TorchWheels], gpu: Gpu) -> str | None:
    """Return the first default build that dropped the GPU. Builds before the GPU was supported do not count."""
    lost: str | None = None
    defaults = [(version(one.default_from), one) for one in rows if one.default_from is not None]
    for _, one in sorted(defaults, key=lambda pair: pair[0], reverse=True):
        if _serves(one, gpu):
            return lost
        lost = one.default_from
    return lost
