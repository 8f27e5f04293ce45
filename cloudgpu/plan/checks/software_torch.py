"""Determine which build of PyTorch an environment gets, and whether it supports the GPU."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog import Gpu, InstanceType
from cloudgpu.catalog.software import TorchWheels
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.question import Question
from cloudgpu.recipe.schema import PythonEnvironment
from cloudgpu.text import command

Version = tuple[int, ...]
Bounds = tuple[tuple[str, Version], ...]

_TORCH: Final = re.compile(r"^\s*torch\s*(\[[^\]]*\])?\s*(?P<bounds>[=~<>!][^;@]*)?\s*(;|$)", re.IGNORECASE)
_BOUND: Final = re.compile(r"(===|==|~=|>=|<=|!=|>|<)\s*([0-9]{1,9}(?:\.[0-9]{1,9})*)")
_CUDA: Final = re.compile(r"cu([0-9]+)([0-9])")
_NAME: Final = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_BRING_TORCH: Final = frozenset(
    ("accelerate", "deepspeed", "fastai", "lightning", "pytorch-lightning", "timm", "torchaudio", "torchmetrics")
) | {"torchvision", "vllm", "xformers"}
"""Packages that require PyTorch themselves, of whatever version."""
_OF_SERIES: Final = 2
"""Parts of a series' number; a release has more."""
_LATER: Final[Version] = (9999, 0)
"""Stands for whatever comes after the newest PyTorch that is known."""


@dataclass(frozen=True)
class Wheels:
    """The newest PyTorch that requirements and index allow.

    Attributes:
        build: Name of the build in its index, `cu126`.
        cuda: `12.6`; None for a build without CUDA.
        series: `2.14`, including later ones if it is the newest known.
        capabilities: Compute capabilities that it supports.
    """

    build: str
    cuda: str | None
    series: str
    capabilities: tuple[str, ...]


@type_rule("torch", "A PyTorch without code for the GPU fails at its first tensor, when the nodes are paid for.")
def torch_unfit(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Yield the reason if the newest PyTorch that the requirements allow does not support the GPU."""
    python = question.recipe.environment.python
    if python is None or question.rehearsed:
        return
    gpu = question.catalog.gpus[kind.gpu]
    wrong = torch_misfit(python, gpu, question.software.torch)
    if wrong:
        yield Reason(f"{wrong} ({kind.name})", nearest_build(python, gpu, question.software.torch))


def torch_misfit(python: PythonEnvironment, gpu: Gpu, known: Sequence[TorchWheels]) -> str:
    """Return why the required PyTorch does not run on a GPU; empty if it does or if that is unknown."""
    bounds = torch_bounds(python.requirements)
    if bounds is None or not known:
        return ""
    wheels = wheels_of(python, known)
    if wheels is None:
        return _none_of(python.torch_backend, known)
    if any(runs_code(code, gpu) for code in wheels.capabilities):
        return ""
    how = f"the {wheels.build} wheels" if python.torch_backend else f"the default wheels ({wheels.build})"
    holds = f"their code begins with {wheels.capabilities[0]}, {gpu.name} has {gpu.compute_capability}"
    return f"{how} of PyTorch {wheels.series} do not run on {gpu.name}: {holds}; these requirements allow them"


def packages_requiring_torch(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the required packages that depend on PyTorch; none if the requirements name PyTorch itself."""
    if torch_bounds(requirements) is not None:
        return ()
    names = [
        re.sub(r"[-_.]+", "-", match[1]).lower() for requirement in requirements if (match := _NAME.match(requirement))
    ]
    return tuple(name for name in names if name in _BRING_TORCH)


def wheels_of(python: PythonEnvironment, known: Sequence[TorchWheels]) -> Wheels | None:
    """Return the newest PyTorch that the environment allows, or None if it needs none or none is known."""
    bounds = torch_bounds(python.requirements)
    if bounds is None:
        return None
    found = [
        (series, row)
        for row in known
        if python.torch_backend is None or row.cuda == python.torch_backend
        for series in _newest(row, bounds, by_default=python.torch_backend is None)
    ]
    if not found:
        return None
    series, row = max(found, key=lambda pair: pair[0])
    match = _CUDA.fullmatch(row.cuda)
    return Wheels(row.cuda, f"{match[1]}.{match[2]}" if match else None, _named(series, row), row.capabilities)


def wheels_named(build: str, series: str, known: Sequence[TorchWheels]) -> TorchWheels | None:
    """Return the wheels of a build and series such as `2.11`, or None if unknown."""
    wanted = _version(series)
    for row in known:
        if row.cuda == build and _version(row.first) <= wanted <= (_version(row.last) if row.last else _LATER):
            return row
    return None


def backends_for(python: PythonEnvironment, gpu: Gpu, known: Sequence[TorchWheels]) -> Iterator[str]:
    """Yield the indexes with a PyTorch for the GPU that meets the same requirements, newest PyTorch first."""
    rows = sorted(known, key=lambda row: (_version(row.last) if row.last else _LATER, row.cuda), reverse=True)
    for build in dict.fromkeys(row.cuda for row in rows):
        there = python.model_copy(update={"torch_backend": build})
        if build != python.torch_backend and wheels_of(there, known) and not torch_misfit(there, gpu, known):
            yield build


def series_for(python: PythonEnvironment, gpu: Gpu, known: Sequence[TorchWheels]) -> str:
    """Return the newest series within the bounds that supports the GPU in the same index; empty if none does."""
    bounds, default = torch_bounds(python.requirements), python.torch_backend is None
    rows = [row for row in known if default or row.cuda == python.torch_backend]
    fit = [row for row in rows if any(runs_code(code, gpu) for code in row.capabilities)]
    ends = [end for row in fit if (end := row.default_to if default else row.last) is not None]
    allowed = [end for end in ends if bounds is not None and allows(bounds, _version(end))]
    return max(allowed, key=_version, default="")


def runs_code(code: str, gpu: Gpu) -> bool:
    """Return True if a GPU runs code for a compute capability: its own, or a lower one of the same major version."""
    number = int(code.replace(".", ""))
    return number // 10 == gpu.sm // 10 and number <= gpu.sm


def torch_bounds(requirements: Iterable[str]) -> Bounds | None:
    """Return the version bounds of PyTorch in the requirements, or None if they do not name it or name a file."""
    for requirement in requirements:
        match = _TORCH.match(requirement)
        if match is not None:
            found = _BOUND.findall(match["bounds"] or "")
            return tuple((operator, _version(version)) for operator, version in found)
    return None


def allows(bounds: Bounds, series: Version) -> bool:
    """Return True if a release of a series such as `(2, 11)` is within the bounds."""
    return all(_allows(operator, version, series) for operator, version in bounds)


def _allows(operator: str, version: Version, series: Version) -> bool:
    of = (*version, 0)[:_OF_SERIES]
    if operator in ("==", "==="):
        return series == of
    if operator == "~=":
        return series == of if len(version) > _OF_SERIES else series >= of and series[0] == of[0]
    if operator == "<":
        return series < _trimmed(version)
    if operator == "<=":
        return series <= of
    return series >= of if operator in (">", ">=") else True


def _newest(row: TorchWheels, bounds: Bounds, *, by_default: bool) -> Iterator[Version]:
    """Yield the newest series of a row within the bounds, if there is one."""
    if by_default:
        first, last = row.default_from, row.default_to
        if first is None:
            return
    else:
        first, last = row.first, row.last
    if last is None and allows(bounds, _LATER):
        yield _LATER
        return
    # Bounds may name a series that is not known by name yet.
    mentioned = [(*version, 0)[:_OF_SERIES] for _, version in bounds]
    mentioned += [(major, minor - 1) for major, minor in mentioned if minor]
    ends = [_version(first), *([_version(last)] if last else []), *mentioned]
    within = [version for version in ends if _version(first) <= version and (last is None or version <= _version(last))]
    yield from sorted((version for version in within if allows(bounds, version)), reverse=True)[:1]


def _named(series: Version, row: TorchWheels) -> str:
    if series == _LATER:
        return f"{row.default_from or row.first} and later"
    return ".".join(map(str, series))


def _none_of(backend: str | None, known: Sequence[TorchWheels]) -> str:
    rows = [row for row in known if row.cuda == backend]
    if backend is None or not rows:
        return ""
    lasts = [row.last for row in rows]
    until = "" if None in lasts else f"; they end with {max((version for version in lasts if version), key=_version)}"
    return f"the {backend} wheels have no PyTorch that these requirements allow{until}"


def nearest_build(python: PythonEnvironment, gpu: Gpu, known: Sequence[TorchWheels]) -> str:
    """Return the option that selects a build for the GPU; empty if there is none."""
    build = next(backends_for(python, gpu, known), "")
    return command("--set", f"environment.python.torch_backend={build}") if build else ""


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _trimmed(version: Version) -> Version:
    """Strip trailing zeros, because `<2.11.0` excludes every release of 2.11."""
    while len(version) > 1 and not version[-1]:
        version = version[:-1]
    return version
