"""How hardware is wished for: `p3dn.24xlarge`, `V100:8` with any memory, or `V100-32GB:8` with that much each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory
from cloudgpu.recipe.nearest import nearest, suggestion
from cloudgpu.text import command

_GPU: Final = re.compile(r"(?P<model>.+?)(?:-(?P<size>\d+)Gi?B)?(?::(?P<count>\d{1,3}))?", re.ASCII | re.IGNORECASE)
_PROVIDERS: Final = {"alibaba": "Alibaba Cloud has", "own": "one has of one's own"}


@dataclass(frozen=True)
class GpuWish:
    """A GPU model as it was written, the memory of each in GB, and how many of them a node has."""

    model: str
    size_gb: int | None = None
    """None for any."""
    count: int | None = None
    """None where none was written, or no number."""


@dataclass(frozen=True)
class Misfit:
    """Why a wish means nothing that AWS has, and what to type instead."""

    about: str
    """`instance-type` or `gpu`."""
    message: str
    fix: str = ""


def parsed(wish: str) -> GpuWish:
    """A wish for GPUs; whatever cannot be read is taken for the model's name."""
    found = _GPU.fullmatch(wish)
    if found is None:
        return GpuWish(wish.partition(":")[0])
    size, count = found["size"], found["count"]
    return GpuWish(found["model"], int(size) if size else None, int(count) if count else None)


def spelled(gpu: Gpu, count: int, memory_gib: Decimal | None = None) -> str:
    """The wish for a GPU, fit for a command line: `V100-32GB:8`; with the memory where it comes in several sizes."""
    sizes = [one.sold_as_gb for one in gpu.memories if one.gib == memory_gib] if len(gpu.memories) > 1 else []
    return f"{written(gpu.name)}{f'-{sizes[0]}GB' if sizes else ''}:{count}"


def written(name: str) -> str:
    """A model's name as wishes have it, without spaces."""
    return name.replace(" ", "-")


def types_meant(wish: str, catalog: Catalog) -> tuple[InstanceType, ...]:
    """The types of AWS that a wish means, the cheapest first; retired ones if no other has it.

    Machines of other clouds and one's own are known by name and never meant: nothing of AWS can launch them.
    """
    if wish in catalog.types:
        return (catalog.types[wish],) if catalog.types[wish].provider == "aws" else ()
    asked = parsed(wish)
    gpu = _gpu(asked, catalog)
    if gpu is None or asked.count is None:
        return ()
    sizes = (None,) if asked.size_gb is None else tuple(one.gib for one in _sizes(asked, gpu))
    found = [kind for gib in sizes for kind in catalog.types_for(gpu.name, asked.count, gib)]
    return tuple(kind for kind in found if not kind.retired) or tuple(found)


def misfit(wish: str, catalog: Catalog) -> Misfit | None:
    """Why a wish means nothing, with the nearest that would; None when it means something."""
    if types_meant(wish, catalog):
        return None
    if wish in catalog.types:
        return _others(catalog.types[wish], catalog)
    return _unknown_type(wish, catalog) if "." in wish else _gpu_misfit(wish, catalog)


def _gpu_misfit(wish: str, catalog: Catalog) -> Misfit:
    asked = parsed(wish)
    gpu = _gpu(asked, catalog)
    if gpu is None:
        return _unknown(wish, asked, catalog)
    if asked.size_gb is not None and not _sizes(asked, gpu):
        return _no_such_size(asked, asked.size_gb, gpu, catalog)
    return _no_such_count(wish, asked, gpu, catalog)


def _gpu(asked: GpuWish, catalog: Catalog) -> Gpu | None:
    return next((gpu for gpu in catalog.gpus.values() if asked.model in (gpu.name, written(gpu.name))), None)


def _sizes(asked: GpuWish, gpu: Gpu) -> tuple[Memory, ...]:
    """Sizes meant: as they are sold, or as EC2 rounds them."""
    return tuple(one for one in gpu.memories if asked.size_gb in (one.sold_as_gb, round(one.gib)))


def _others(kind: InstanceType, catalog: Catalog) -> Misfit:
    alike = [one for one in catalog.types_for(kind.gpu, kind.gpus) if not one.retired]
    message = f"{kind.name} is a machine that {_PROVIDERS.get(kind.provider, 'others have')}; AWS cannot launch it"
    return Misfit(
        "instance-type", message, command("--set", f"resources.instance_type={alike[0].name}") if alike else ""
    )


def _unknown_type(wish: str, catalog: Catalog) -> Misfit:
    near = nearest(wish, [kind.name for kind in catalog.rentable if not kind.retired])
    fix = command("--set", f"resources.instance_type={near}") if near else ""
    return Misfit("instance-type", f"unknown instance type {wish}{suggestion(wish, catalog.types)}", fix)


def _unknown(wish: str, asked: GpuWish, catalog: Catalog) -> Misfit:
    names = [written(name) for name in catalog.gpus]
    model, near = wish.partition(":")[0], nearest(asked.model, names)
    if near is None:
        return Misfit("gpu", f"unknown GPU {model}", f"known GPUs: {', '.join(names)}")
    size = f"-{asked.size_gb}GB" if asked.size_gb is not None else ""
    fix = command("--set", f"resources.gpu={near}{size}:{asked.count or 1}")
    return Misfit("gpu", f"unknown GPU {model}{suggestion(asked.model, names)}", fix)


def _no_such_size(asked: GpuWish, size_gb: int, gpu: Gpu, catalog: Catalog) -> Misfit:
    sold = [one.sold_as_gb for one in gpu.memories]
    message = (
        f"{gpu.name} does not come with {size_gb} GB of memory; there are {_listed([f'{one} GB' for one in sold])}"
    )
    enough = [kind for kind in _living(gpu, catalog) if kind.gpus == asked.count] or _living(gpu, catalog)
    if not enough:
        return Misfit("gpu", message)
    large = [kind for kind in enough if kind.gpu_memory_gib >= size_gb]
    fitting = min(large, key=_each) if large else max(enough, key=_each)
    return Misfit(
        "gpu", message, command("--set", f"resources.gpu={spelled(gpu, fitting.gpus, fitting.gpu_memory_gib)}")
    )


def _no_such_count(wish: str, asked: GpuWish, gpu: Gpu, catalog: Catalog) -> Misfit:
    size = "" if asked.size_gb is None else f"-{asked.size_gb}GB"
    sizes = {one.gib for one in _sizes(asked, gpu)}
    counts = sorted({kind.gpus for kind in _living(gpu, catalog) if not size or kind.gpu_memory_gib in sizes})
    there = [f"{written(gpu.name)}{size}:{count}" for count in counts]
    count = wish.partition(":")[2] or "an unknown number of"
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
