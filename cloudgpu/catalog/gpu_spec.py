"""GPU specs: an instance type (`p3dn.24xlarge`), a model (`V100:8`), or a model with memory per GPU (`V100-32GB:8`)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, Decimal
from typing import Final

from cloudgpu.bounds import MAX_SIZE_GIB
from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory
from cloudgpu.catalog.unsupported import unsupported_gpu, unsupported_type
from cloudgpu.recipe.problem import nearest_name, suggestion
from cloudgpu.text import command

_AMOUNT: Final = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(GiB|GB|G|TiB|TB)?\s*", re.IGNORECASE | re.ASCII)
_BYTES: Final = {"gib": 2**30, "tib": 2**40, "gb": 10**9, "tb": 10**12, "g": 10**9}
_STEP: Final = Decimal("0.01")
"""The catalog's precision in GiB. Without rounding, 24 GB would exceed the 22.35 GiB that EC2 reports for an A10G."""
_GPU: Final = re.compile(r"(?P<model>.+?)(?:-(?P<size>\d+)Gi?B)?(?::(?P<count>\d{1,3}))?", re.ASCII | re.IGNORECASE)
_PROVIDERS: Final = {"alibaba": "an Alibaba Cloud instance type", "own": "a self-managed machine"}


def parse_gib(text: str) -> Decimal:
    """Parse an amount of memory into GiB, rounded down to a hundredth. The default unit is GB (1e9 bytes)."""
    match = _AMOUNT.fullmatch(text)
    amount = Decimal(match[1]) * _BYTES[(match[2] or "GB").lower()] / 2**30 if match else Decimal(0)
    if not amount:
        message = "expected memory such as 32GB or 24GiB; a number without a unit is in GB"
        raise ValueError(message)
    if amount > MAX_SIZE_GIB:
        message = f"expected memory of at most {MAX_SIZE_GIB}GiB"
        raise ValueError(message)
    return amount.quantize(_STEP, ROUND_DOWN)


@dataclass(frozen=True)
class GpuSpec:
    """A GPU spec as written: model, memory of each GPU in GB, and GPUs per node."""

    model: str
    size_gb: int | None = None
    """None if the spec has no memory size."""
    count: int | None = None
    """None if the spec has no valid count."""


@dataclass(frozen=True)
class SpecMismatch:
    """The reason why a spec matches no AWS instance type, and a suggested change."""

    about: str
    """The part of the spec that does not match: `instance-type` or `gpu`."""
    message: str
    fix: str = ""


def parse_gpu_spec(spec: str) -> GpuSpec:
    """Parse a GPU spec. Text that does not parse becomes the model name."""
    match = _GPU.fullmatch(spec)
    if match is None:
        return GpuSpec(spec.partition(":")[0])
    size, count = match["size"], match["count"]
    return GpuSpec(match["model"], int(size) if size else None, int(count) if count else None)


def format_gpu_spec(gpu: Gpu, count: int, memory_gib: Decimal | None = None) -> str:
    """Return the spec of a GPU for a command line, such as `V100-32GB:8`.

    The memory size is included only if the model has several sizes.
    """
    sizes = [memory.sold_as_gb for memory in gpu.memories if memory.gib == memory_gib] if len(gpu.memories) > 1 else []
    return f"{spec_name(gpu.name)}{f'-{sizes[0]}GB' if sizes else ''}:{count}"


def spec_name(name: str) -> str:
    """Return a model's name as specs spell it: with dashes instead of spaces."""
    return name.replace(" ", "-")


def types_for_spec(spec: str, catalog: Catalog) -> tuple[InstanceType, ...]:
    """Return the AWS instance types that match a spec, cheapest first. Retired types match only if no other type does.

    Types of other clouds and self-managed hosts never match, because AWS cannot launch them.
    """
    if spec in catalog.types:
        return (catalog.types[spec],) if catalog.types[spec].provider == "aws" else ()
    requested = parse_gpu_spec(spec)
    gpu = _gpu(requested, catalog)
    if gpu is None or requested.count is None:
        return ()
    sizes = (None,) if requested.size_gb is None else tuple(memory.gib for memory in _sizes(requested, gpu))
    matching = [instance_type for gib in sizes for instance_type in catalog.types_for(gpu.name, requested.count, gib)]
    return tuple(instance_type for instance_type in matching if not instance_type.retired) or tuple(matching)


def find_spec_mismatch(spec: str, catalog: Catalog) -> SpecMismatch | None:
    """Explain why a spec matches no AWS instance type, and suggest a valid spec. Return None if the spec matches."""
    if types_for_spec(spec, catalog):
        return None
    if spec in catalog.types:
        return _not_on_aws(catalog.types[spec], catalog)
    return _unknown_type(spec, catalog) if "." in spec else _gpu_misfit(spec, catalog)


def why_no_such_gpu(spec: str, catalog: Catalog) -> str:
    """Return why neither a cloud nor a self-managed host can have the GPU of a spec; empty if one can.

    Counts are not checked, because a self-managed host may have any number of GPUs.
    """
    requested = parse_gpu_spec(spec)
    if spec in catalog.types or "." in spec:
        return ""
    gpu = _gpu(requested, catalog)
    if gpu is None or (requested.size_gb is not None and not _sizes(requested, gpu)):
        return _gpu_misfit(spec, catalog).message
    return ""


def _gpu_misfit(spec: str, catalog: Catalog) -> SpecMismatch:
    requested = parse_gpu_spec(spec)
    gpu = _gpu(requested, catalog)
    if gpu is None:
        return _unknown(spec, requested, catalog)
    if requested.size_gb is not None and not _sizes(requested, gpu):
        return _no_such_size(requested, requested.size_gb, gpu, catalog)
    return _no_such_count(spec, requested, gpu, catalog)


def _gpu(requested: GpuSpec, catalog: Catalog) -> Gpu | None:
    return next((gpu for gpu in catalog.gpus.values() if requested.model in (gpu.name, spec_name(gpu.name))), None)


def _sizes(requested: GpuSpec, gpu: Gpu) -> tuple[Memory, ...]:
    """Return the GPU's memory sizes whose nominal size or rounded size in GiB equals the requested size."""
    return tuple(memory for memory in gpu.memories if requested.size_gb in (memory.sold_as_gb, round(memory.gib)))


def _not_on_aws(instance_type: InstanceType, catalog: Catalog) -> SpecMismatch:
    alike = [other for other in catalog.types_for(instance_type.gpu, instance_type.gpus) if not other.retired]
    what = _PROVIDERS.get(instance_type.provider, "not an EC2 instance type")
    message = f"{instance_type.name} is {what}, which AWS cannot launch"
    return SpecMismatch(
        "instance-type", message, command("--set", f"resources.instance_type={alike[0].name}") if alike else ""
    )


def _unknown_type(spec: str, catalog: Catalog) -> SpecMismatch:
    known = unsupported_type(spec)
    if known is not None:
        fix = command("--set", f"resources.instance_type={known.replacement}")
        return SpecMismatch("instance-type", str(known), fix)
    near = nearest_name(spec, [instance_type.name for instance_type in catalog.rentable if not instance_type.retired])
    fix = command("--set", f"resources.instance_type={near}") if near else ""
    return SpecMismatch("instance-type", f"unknown instance type {spec}{suggestion(spec, catalog.types)}", fix)


def _unknown(spec: str, requested: GpuSpec, catalog: Catalog) -> SpecMismatch:
    names = [spec_name(name) for name in catalog.gpus]
    known = unsupported_gpu(requested.model)
    if known is not None:
        counts = [instance_type.gpus for instance_type in _available(catalog.gpus[known.replacement], catalog)]
        count = requested.count if requested.count in counts else max(counts)
        return SpecMismatch("gpu", str(known), command("--set", f"resources.gpu={known.replacement}:{count}"))
    model, near = spec.partition(":")[0], nearest_name(requested.model, names)
    if near is None:
        return SpecMismatch("gpu", f"unknown GPU {model}", f"known GPUs: {', '.join(names)}")
    size = f"-{requested.size_gb}GB" if requested.size_gb is not None else ""
    fix = command("--set", f"resources.gpu={near}{size}:{requested.count or 1}")
    return SpecMismatch("gpu", f"unknown GPU {model}{suggestion(requested.model, names)}", fix)


def _no_such_size(requested: GpuSpec, size_gb: int, gpu: Gpu, catalog: Catalog) -> SpecMismatch:
    sizes = [f"{memory.sold_as_gb} GB" for memory in gpu.memories]
    message = f"{gpu.name} does not come with {size_gb} GB of memory; available sizes: {_listed(sizes)}"
    available = _available(gpu, catalog)
    candidates = [instance_type for instance_type in available if instance_type.gpus == requested.count] or available
    if not candidates:
        return SpecMismatch("gpu", message)
    large = [instance_type for instance_type in candidates if instance_type.gpu_memory_gib >= size_gb]
    fitting = min(large, key=_gpu_memory_gib) if large else max(candidates, key=_gpu_memory_gib)
    return SpecMismatch(
        "gpu", message, command("--set", f"resources.gpu={format_gpu_spec(gpu, fitting.gpus, fitting.gpu_memory_gib)}")
    )


def _no_such_count(spec: str, requested: GpuSpec, gpu: Gpu, catalog: Catalog) -> SpecMismatch:
    size = "" if requested.size_gb is None else f"-{requested.size_gb}GB"
    sizes = {memory.gib for memory in _sizes(requested, gpu)}
    counts = sorted(
        {
            instance_type.gpus
            for instance_type in _available(gpu, catalog)
            if not size or instance_type.gpu_memory_gib in sizes
        }
    )
    specs = [f"{spec_name(gpu.name)}{size}:{count}" for count in counts]
    count = spec.partition(":")[2]
    memory = size and f" with {requested.size_gb} GB"
    problem = f"no instance type has {count} {gpu.name}{memory}" if count else f"{spec} does not specify a GPU count"
    message = f"{problem}; available: {_listed(specs)}"
    return SpecMismatch("gpu", message, command("--set", f"resources.gpu={specs[-1]}") if specs else "")


def _available(gpu: Gpu, catalog: Catalog) -> Sequence[InstanceType]:
    return [
        instance_type
        for instance_type in catalog.rentable
        if instance_type.gpu == gpu.name and not instance_type.retired
    ]


def _gpu_memory_gib(instance_type: InstanceType) -> Decimal:
    return instance_type.gpu_memory_gib


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts) or "none"
