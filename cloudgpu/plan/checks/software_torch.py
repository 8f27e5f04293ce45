"""Rule: exclude types whose GPU cannot run the environment's PyTorch wheels."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog import Gpu, InstanceType
from cloudgpu.catalog.compatibility import TorchWheels
from cloudgpu.plan.checks.rule import Reason, rule
from cloudgpu.plan.planner_input import PlannerInput
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
"""Packages that depend on PyTorch without pinning its version."""
_OF_SERIES: Final = 2
"""Number of version parts in a release series, such as `2.11`."""
_LATER: Final[Version] = (9999, 0)
"""Represents every release after the newest one in the catalog."""


@dataclass(frozen=True)
class Wheels:
    """The PyTorch wheels that pip would install: the newest release that the requirements and the index allow.

    Attributes:
        build: Name of the index, such as `cu126`.
        cuda: CUDA version, such as `12.6`; None for a build without CUDA.
        series: PyTorch release series, such as `2.14` or `2.14 and later`.
        capabilities: Compute capabilities for which the wheels contain code.
    """

    build: str
    cuda: str | None
    series: str
    capabilities: tuple[str, ...]


@rule("torch", "A PyTorch build that does not support the GPU fails at its first operation, after the launch.")
def torch_unfit(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types if the newest allowed PyTorch release does not support their GPU."""
    python = inputs.recipe.environment.python
    if python is None or inputs.rehearsed:
        return
    gpu = inputs.catalog.gpus[instance_type.gpu]
    problem = torch_misfit(python, gpu, inputs.software.torch)
    if problem:
        yield Reason(f"{problem} ({instance_type.name})", nearest_build(python, gpu, inputs.software.torch))


def torch_misfit(python: PythonEnvironment, gpu: Gpu, releases: Sequence[TorchWheels]) -> str:
    """Explain why the required PyTorch release does not run on a GPU. Return an empty string otherwise."""
    bounds = torch_bounds(python.requirements)
    if bounds is None or not releases:
        return ""
    wheels = wheels_of(python, releases)
    if wheels is None:
        return _no_match_reason(python.torch_backend, releases)
    if any(runs_code(code, gpu) for code in wheels.capabilities):
        return ""
    which = f"the {wheels.build} wheels" if python.torch_backend else f"the default wheels ({wheels.build})"
    covered = f"{wheels.capabilities[0]} to {wheels.capabilities[-1]}"
    reason = f"they support compute capabilities {covered}, but {gpu.name} has {gpu.compute_capability}"
    return f"{which} of PyTorch {wheels.series} do not run on {gpu.name}: {reason}; the requirements allow this release"


def packages_requiring_torch(requirements: Iterable[str]) -> tuple[str, ...]:
    """Return the required packages that depend on PyTorch; empty if the requirements name PyTorch directly."""
    if torch_bounds(requirements) is not None:
        return ()
    names = [
        re.sub(r"[-_.]+", "-", match[1]).lower() for requirement in requirements if (match := _NAME.match(requirement))
    ]
    return tuple(name for name in names if name in _BRING_TORCH)


def wheels_of(python: PythonEnvironment, releases: Sequence[TorchWheels]) -> Wheels | None:
    """Return the newest PyTorch wheels that the environment allows; None without a PyTorch requirement or a match."""
    bounds = torch_bounds(python.requirements)
    if bounds is None:
        return None
    allowed = [
        (series, row)
        for row in releases
        if python.torch_backend is None or row.cuda == python.torch_backend
        for series in _newest(row, bounds, by_default=python.torch_backend is None)
    ]
    if not allowed:
        return None
    series, row = max(allowed, key=lambda pair: pair[0])
    match = _CUDA.fullmatch(row.cuda)
    return Wheels(row.cuda, f"{match[1]}.{match[2]}" if match else None, _series_text(series, row), row.capabilities)


def wheels_named(build: str, series: str, releases: Sequence[TorchWheels]) -> TorchWheels | None:
    """Return the catalog's wheels for a build and a release series, such as `2.11`; None if there are none."""
    version = _version(series)
    for row in releases:
        if row.cuda == build and _version(row.first) <= version <= (_version(row.last) if row.last else _LATER):
            return row
    return None


def backends_for(python: PythonEnvironment, gpu: Gpu, releases: Sequence[TorchWheels]) -> Iterator[str]:
    """Yield the other PyTorch builds, such as `cu126`, that have code for a GPU, newest PyTorch release first."""
    rows = sorted(releases, key=lambda row: (_version(row.last) if row.last else _LATER, row.cuda), reverse=True)
    for build in dict.fromkeys(row.cuda for row in rows):
        variant = python.model_copy(update={"torch_backend": build})
        if build != python.torch_backend and wheels_of(variant, releases) and not torch_misfit(variant, gpu, releases):
            yield build


def series_for(python: PythonEnvironment, gpu: Gpu, releases: Sequence[TorchWheels]) -> str:
    """Return the newest allowed PyTorch series with code for a GPU from the same index; empty if there is none."""
    bounds, default = torch_bounds(python.requirements), python.torch_backend is None
    rows = [row for row in releases if default or row.cuda == python.torch_backend]
    fit = [row for row in rows if any(runs_code(code, gpu) for code in row.capabilities)]
    ends = [end for row in fit if (end := row.default_to if default else row.last) is not None]
    allowed = [end for end in ends if bounds is not None and allows(bounds, _version(end))]
    return max(allowed, key=_version, default="")


def runs_code(code: str, gpu: Gpu) -> bool:
    """Return True if a GPU runs code for a compute capability: its own, or a lower one with the same major version."""
    number = int(code.replace(".", ""))
    return number // 10 == gpu.sm // 10 and number <= gpu.sm


def torch_bounds(requirements: Iterable[str]) -> Bounds | None:
    """Return the version bounds of the PyTorch requirement; None if there is none or if it specifies a file or URL."""
    for requirement in requirements:
        match = _TORCH.match(requirement)
        if match is not None:
            bounds = _BOUND.findall(match["bounds"] or "")
            return tuple((operator, _version(version)) for operator, version in bounds)
    return None


def allows(bounds: Bounds, series: Version) -> bool:
    """Return True if a release of a series, such as `(2, 11)`, is within the bounds."""
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
    """Yield at most one series: the newest series of a row that is within the bounds."""
    if by_default:
        first, last = row.default_from, row.default_to
        if first is None:
            return
    else:
        first, last = row.first, row.last
    if last is None and allows(bounds, _LATER):
        yield _LATER
        return
    # Bounds may name a series that the catalog does not list yet.
    mentioned = [(*version, 0)[:_OF_SERIES] for _, version in bounds]
    mentioned += [(major, minor - 1) for major, minor in mentioned if minor]
    ends = [_version(first), *([_version(last)] if last else []), *mentioned]
    within = [end for end in ends if _version(first) <= end and (last is None or end <= _version(last))]
    yield from sorted((end for end in within if allows(bounds, end)), reverse=True)[:1]


def _series_text(series: Version, row: TorchWheels) -> str:
    if series == _LATER:
        return f"{row.default_from or row.first} and later"
    return ".".join(map(str, series))


def _no_match_reason(backend: str | None, releases: Sequence[TorchWheels]) -> str:
    rows = [row for row in releases if row.cuda == backend]
    if backend is None or not rows:
        return ""
    lasts = [row.last for row in rows]
    until = "" if None in lasts else f"; its last release is {max((last for last in lasts if last), key=_version)}"
    return f"the {backend} index has no PyTorch release that these requirements allow{until}"


def nearest_build(python: PythonEnvironment, gpu: Gpu, releases: Sequence[TorchWheels]) -> str:
    """Return the `--set` option that selects a PyTorch build with code for the GPU; empty if there is none."""
    build = next(backends_for(python, gpu, releases), "")
    return command("--set", f"environment.python.torch_backend={build}") if build else ""


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _trimmed(version: Version) -> Version:
    """Remove trailing zeros because `<2.11.0` does not allow any release of 2.11."""
    while len(version) > 1 and not version[-1]:
        version = version[:-1]
    return version
