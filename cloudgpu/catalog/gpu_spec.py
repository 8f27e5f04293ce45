"""GPU specs: `p3dn.24xlarge`, `V100:8` for any memory size, or `V100-32GB:8` for that much memory per GPU."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory
from cloudgpu.recipe.name_suggestions import nearest, suggestion
from cloudgpu.text import command

_GPU: Final = re.compile(r"(?P<model>.+?)(?:-(?P<size>\d+)Gi?B)?(?::(?P<count>\d{1,3}))?", re.ASCII | re.IGNORECASE)
_PROVIDERS: Final = {"alibaba": "Alibaba Cloud has", "own": "one has of one's own"}


@dataclass(frozen=True)
class GpuSpec:
    """A GPU spec as written: model, memory of each GPU in GB, and GPUs per node."""

    model: str
    size_gb: int | None = None
    """None for any."""
    count: int | None = None
    """None where none was written, or no number."""


@dataclass(frozen=True)
class Misfit:
    """Why a spec matches no AWS instance type, and what to use instead."""

    about: str
    """`instance-type` or `gpu`."""
    message: str
    fix: str = ""


def parse_gpu_spec(spec: str) -> GpuSpec:
    """Parse a GPU spec. Text that does not parse becomes the model name."""
    found = _GPU.fullmatch(spec)
    if found is None:
        return GpuSpec(spec.partition(":")[0])
    size, count = found["size"], found["count"]
    return GpuSpec(found["model"], int(size) if size else None, int(count) if count else None)


def spelled(gpu: Gpu, count: int, memory_gib: Decimal | None = None) -> str:
    """Return the spec of a GPU for a command line, such as `V100-32GB:8`; memory only if sold in several sizes."""
    sizes = [memory.sold_as_gb for memory in gpu.memories if memory.gib == memory_gib] if len(gpu.memories) > 1 else []
    return f"{spec_name(gpu.name)}{f'-{sizes[0]}GB' if sizes else ''}:{count}"


def spec_name(name: str) -> str:
    """Return a model's name as written in specs, without spaces."""
    return name.replace(" ", "-")


def types_for_spec(spec: str, catalog: Catalog) -> tuple[InstanceType, ...]:
    """Return the AWS instance types that match a spec, cheapest first; retired ones only if no other matches.

    Types of other clouds and self-managed hosts never match: AWS cannot launch them.
    """
    if spec in catalog.types:
        return (catalog.types[spec],) if catalog.types[spec].provider == "aws" else ()
    asked = parse_gpu_spec(spec)
    gpu = _gpu(asked, catalog)
    if gpu is None or asked.count is None:
        return ()
    sizes = (None,) if asked.size_gb is None else tuple(memory.gib for memory in _sizes(asked, gpu))
    found = [kind for gib in sizes for kind in catalog.types_for(gpu.name, asked.count, gib)]
    return tuple(kind for kind in found if not kind.retired) or tuple(found)


def misfit(spec: str, catalog: Catalog) -> Misfit | None:
    """Explain why a spec matches nothing and suggest the nearest one; None if it matches."""
    if types_for_spec(spec, catalog):
        return None
    if spec in catalog.types:
        return _others(catalog.types[spec], catalog)
    return _unknown_type(spec, catalog) if "." in spec else _gpu_misfit(spec, catalog)


def _gpu_misfit(spec: str, catalog: Catalog) -> Misfit:
    asked = parse_gpu_spec(spec)
    gpu = _gpu(asked, catalog)
    if gpu is None:
        return _unknown(spec, asked, catalog)
    if asked.size_gb is not None and not _sizes(asked, gpu):
        return _no_such_size(asked, asked.size_gb, gpu, catalog)
    return _no_such_count(spec, asked, gpu, catalog)


def _gpu(asked: GpuSpec, catalog: Catalog) -> Gpu | None:
    return next((gpu for gpu in catalog.gpus.values() if asked.model in (gpu.name, spec_name(gpu.name))), None)


def _sizes(asked: GpuSpec, gpu: Gpu) -> tuple[Memory, ...]:
    """Return the matching memory sizes, as sold or as EC2 rounds them."""
    return tuple(memory for memory in gpu.memories if asked.size_gb in (memory.sold_as_gb, round(memory.gib)))


def _others(kind: InstanceType, catalog: Catalog) -> Misfit:
    alike = [other for other in catalog.types_for(kind.gpu, kind.gpus) if not other.retired]
    message = f"{kind.name} is a machine that {_PROVIDERS.get(kind.provider, 'others have')}; AWS cannot launch it"
    return Misfit(
        "instance-type", message, command("--set", f"resources.instance_type={alike[0].name}") if alike else ""
    )


def _unknown_type(spec: str, catalog: Catalog) -> Misfit:
    near = nearest(spec, [kind.name for kind in catalog.rentable if not kind.retired])
    fix = command("--set", f"resources.instance_type={near}") if near else ""
    return Misfit("instance-type", f"unknown instance type {spec}{suggestion(spec, catalog.types)}", fix)


def _unknown(spec: str, asked: GpuSpec, catalog: Catalog) -> Misfit:
    names = [spec_name(name) for name in catalog.gpus]
    model, near = spec.partition(":")[0], nearest(asked.model, names)
    if near is None:
        return Misfit("gpu", f"unknown GPU {model}", f"known GPUs: {', '.join(names)}")
    size = f"-{asked.size_gb}GB" if asked.size_gb is not None else ""
    fix = command("--set", f"resources.gpu={near}{size}:{asked.count or 1}")
    return Misfit("gpu", f"unknown GPU {model}{suggestion(asked.model, names)}", fix)


def _no_such_size(asked: GpuSpec, size_gb: int, gpu: Gpu, catalog: Catalog) -> Misfit:
    sold = [memory.sold_as_gb for memory in gpu.memories]
    message = (
        f"{gpu.name} does not come with {size_gb} GB of memory; there are {_listed([f'{size} GB' for size in sold])}"
    )
    enough = [kind for kind in _living(gpu, catalog) if kind.gpus == asked.count] or _living(gpu, catalog)
    if not enough:
        return Misfit("gpu", message)
    large = [kind for kind in enough if kind.gpu_memory_gib >= size_gb]
    fitting = min(large, key=_each) if large else max(enough, key=_each)
    return Misfit(
        "gpu", message, command("--set", f"resources.gpu={spelled(gpu, fitting.gpus, fitting.gpu_memory_gib)}")
    )


def _no_such_count(spec: str, asked: GpuSpec, gpu: Gpu, catalog: Catalog) -> Misfit:
    size = "" if asked.size_gb is None else f"-{asked.size_gb}GB"
    sizes = {memory.gib for memory in _sizes(asked, gpu)}
    counts = sorted({kind.gpus for kind in _living(gpu, catalog) if not size or kind.gpu_memory_gib in sizes})
    there = [f"{spec_name(gpu.name)}{size}:{count}" for count in counts]
    count = spec.partition(":")[2] or "an unknown number of"
    message = (
        f"no instance type has {count} {gpu.name}{size and f' with {asked.size_gb} GB'}; there are {_listed(there)}"
    )
    return Misfit("gpu", message, command("--set", f"resources.gpu={there[-1]}") if there else "")


def _living(gpu: Gpu, catalog: Catalog) -> Sequence[InstanceType]:
    return [kind for kind in catalog.rentable if kind.gpu == gpu.name and not kind.retired]


def _each(kind: InstanceType) -> Decimal:
    return kind.gpu_memory_gib


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "none"
