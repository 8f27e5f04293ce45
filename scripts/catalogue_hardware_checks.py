"""Consistency checks of the catalog's GPUs and instance types, and the types that all checks share."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Final, TypeVar

from cloudgpu.catalog.catalog import Catalog, driver_for, load
from cloudgpu.catalog.compatibility import Software, software
from cloudgpu.catalog.hardware import Gpu, InstanceType
from cloudgpu.catalog.unsupported import every_entry
from cloudgpu.errors import RecipeError

Version = tuple[int, ...]
_VERSION: Final = re.compile(r"\d+(\.\d+)*", re.ASCII)
_ALWAYS: Final = ("hardware", "lifecycle", "network", "nvme", "usage_classes", "gpudirect_rdma", "nvlink")
_IF_PRESENT: Final = ("zones", "on_demand_usd", "spot_usd", "capacity_block_usd", "replacement")
Ordered = TypeVar("Ordered", int, str)

_FIRST_OPEN: Final = 75
"""Lowest compute capability (Turing) whose GPUs have the GSP processor that open kernel modules require."""


@dataclass(frozen=True)
class CatalogData:
    """The input of every check: the catalog and the software data."""

    catalog: Catalog
    software: Software


@dataclass(frozen=True)
class DataProblem:
    """An inconsistency in one row of the data. `where` identifies the row."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


Rule = Callable[[CatalogData], Iterator[DataProblem]]


def load_bundled_data() -> CatalogData:
    """Return the catalog and the software data bundled with this version of cloudgpu."""
    return CatalogData(load(), software())


def parse_version(text: str) -> Version:
    """Parse a version such as `12.6.3` into comparable numbers."""
    return tuple(int(part) for part in text.split("."))


def runs_on(capability: str, code: str) -> bool:
    """Return True if a GPU with compute capability `capability` runs code that was built for `code`.

    The major versions must be equal, and the minor version of `code` must not be higher.
    """
    gpu, built = parse_version(capability), parse_version(code)
    return gpu[0] == built[0] and gpu >= built


def check_versions(data: CatalogData) -> Iterator[DataProblem]:
    """Check that all versions and compute capabilities consist of numbers separated by dots."""
    for where, text in _versions(data):
        if text is not None and not _VERSION.fullmatch(text):
            yield DataProblem(where, f"{text!r} is not a version")


def _versions(data: CatalogData) -> Iterator[tuple[str, str | None]]:
    for gpu in data.catalog.gpus.values():
        yield from _each(gpu.name, gpu.compute_capability, gpu.first_cuda, gpu.first_torch_without, gpu.last_torch)
    for month in data.software.ngc.values():
        yield from _each(month.month, month.cuda, month.lowest)
    for image in data.software.images:
        yield from _each(image.image, image.lowest, image.highest)
    for wheels in data.software.torch:
        yield from _each(
            wheels.cuda, wheels.first, wheels.last, wheels.default_from, wheels.default_to, *wheels.capabilities
        )
    for minimum in data.software.fabric.values():
        yield from _each(minimum.instance_type, minimum.efa_installer, minimum.ofi_nccl, minimum.nccl, minimum.cuda)


def _each(where: str, *texts: str | None) -> Iterator[tuple[str, str | None]]:
    return ((where, text) for text in texts)


def check_hardware(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every type has a known GPU and memory size, and no more EFA interfaces than network cards."""
    for instance_type in data.catalog.types.values():
        gpu = data.catalog.gpus.get(instance_type.gpu)
        if gpu is None:
            yield DataProblem(instance_type.name, f"its GPU {instance_type.gpu} is not in the catalog")
            continue
        if instance_type.gpu_memory_gib not in [memory.gib for memory in gpu.memories]:
            yield DataProblem(
                instance_type.name, f"{instance_type.gpu} does not come with {instance_type.gpu_memory_gib} GiB"
            )
        if instance_type.nvlink and gpu.nvlink_links == 0:
            yield DataProblem(
                instance_type.name, f"NVLink connects its GPUs, but {instance_type.gpu} has no NVLink links"
            )
        if min(instance_type.gpus, instance_type.vcpus, instance_type.memory_gib) < 1:
            yield DataProblem(instance_type.name, "it has no GPUs, processors or memory")
        if instance_type.efa_interfaces > instance_type.network_cards:
            yield DataProblem(
                instance_type.name,
                f"it has more EFA interfaces ({instance_type.efa_interfaces}) "
                f"than network cards ({instance_type.network_cards})",
            )


def check_retirement(data: CatalogData) -> Iterator[DataProblem]:
    """Check that retired types have a date and a replacement, and that every other type has zones."""
    for instance_type in data.catalog.rentable:
        if not instance_type.retired:
            if instance_type.retired_on is not None:
                yield DataProblem(instance_type.name, "it has a retirement date but is not retired")
            if not instance_type.zones:
                yield DataProblem(instance_type.name, "it is not retired but is not offered in any zone")
            continue
        if instance_type.retired_on is None:
            yield DataProblem(instance_type.name, "it is retired but has no retirement date")
        if instance_type.zones:
            yield DataProblem(instance_type.name, "it is retired but still offered")
        replacement = data.catalog.types.get(instance_type.replacement or "")
        if replacement is None or replacement.retired or replacement.provider != "aws":
            yield DataProblem(instance_type.name, f"its replacement {instance_type.replacement} is not available")


def check_offers(data: CatalogData) -> Iterator[DataProblem]:
    """Check that zones and prices are in known regions, and that types outside AWS have neither."""
    regions = frozenset(data.catalog.regions)
    for instance_type in data.catalog.types.values():
        named = {
            *instance_type.zones,
            *instance_type.on_demand_usd,
            *instance_type.spot_usd,
            *instance_type.capacity_block_usd,
        }
        for region in sorted(named - regions):
            yield DataProblem(instance_type.name, f"the region {region} is not in the catalog")
        for region, zones in instance_type.zones.items():
            if not zones or any(zone[:-1] != region for zone in zones):
                yield DataProblem(
                    instance_type.name, f"its zones in {region} are invalid: {', '.join(zones) or 'none'}"
                )
        if instance_type.provider != "aws" and named:
            yield DataProblem(instance_type.name, f"its provider is {instance_type.provider}, but it has AWS offers")


def check_prices(data: CatalogData) -> Iterator[DataProblem]:
    """Check that prices are positive, and that spot and Capacity Block prices are consistent with the type."""
    for instance_type in data.catalog.types.values():
        for region, usd in (*instance_type.on_demand_usd.items(), *instance_type.capacity_block_usd.items()):
            if usd <= 0:
                yield DataProblem(instance_type.name, f"its price in {region} is not positive: {usd} USD per hour")
        if instance_type.capacity_block_usd and "capacity-block" not in instance_type.usage_classes:
            yield DataProblem(
                instance_type.name, "it has Capacity Block prices, but EC2 does not offer it in Capacity Blocks"
            )
        for region, (low, high) in instance_type.spot_usd.items():
            if not 0 < low <= high <= instance_type.on_demand_usd.get(region, high):
                message = f"its spot prices in {region} are invalid: {low} to {high} USD per hour"
                yield DataProblem(instance_type.name, message)


def check_unsupported(data: CatalogData) -> Iterator[DataProblem]:
    """Check that hardware that cloudgpu does not support is not in the catalog, and that its replacement is."""
    types = {instance_type.name for instance_type in data.catalog.rentable if not instance_type.retired}
    for entry in every_entry():
        if not entry.source:
            yield DataProblem(entry.name, "it is unsupported, but the reason has no source")
        if entry.name in types or entry.name in data.catalog.gpus:
            yield DataProblem(entry.name, "it is unsupported, but in the catalog")
        if entry.replacement not in types and entry.replacement not in data.catalog.gpus:
            yield DataProblem(entry.name, f"its replacement {entry.replacement} is not available")


def check_type_sources(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every value of a type has a source."""
    for instance_type in data.catalog.types.values():
        for name in _sourced_fields(instance_type):
            if not instance_type.sources.get(name):
                yield DataProblem(instance_type.name, f"its {name} has no source")
        if not instance_type.source:
            yield DataProblem(instance_type.name, "its prices have no source")


def _sourced_fields(instance_type: InstanceType) -> Iterator[str]:
    yield from _ALWAYS
    for name in _IF_PRESENT:
        if getattr(instance_type, name):
            yield name


def check_version_ranges(data: CatalogData) -> Iterator[DataProblem]:
    """Check that no range of driver, CUDA or NGC versions ends before it starts."""
    for gpu in data.catalog.gpus.values():
        first_cuda = None if gpu.first_cuda is None else parse_version(gpu.first_cuda)[0]
        if _crossed(gpu.first_driver, gpu.last_driver):
            yield DataProblem(
                gpu.name, f"its first driver R{gpu.first_driver} is newer than its last driver R{gpu.last_driver}"
            )
        if _crossed(first_cuda, gpu.last_cuda_major):
            yield DataProblem(
                gpu.name, f"its first CUDA version {gpu.first_cuda} is newer than its last, {gpu.last_cuda_major}"
            )
        if _crossed(gpu.first_ngc, gpu.last_ngc):
            yield DataProblem(gpu.name, f"its first NGC release {gpu.first_ngc} is newer than its last, {gpu.last_ngc}")
        if gpu.first_ngc is None and gpu.last_ngc is not None:
            yield DataProblem(gpu.name, f"its NGC releases end with {gpu.last_ngc} but have no first release")


def _crossed(first: Ordered | None, last: Ordered | None) -> bool:
    return first is not None and last is not None and first > last


def check_gpus(data: CatalogData) -> Iterator[DataProblem]:
    """Check the memory sizes, kernel modules, NVLink rate and replacement of every GPU."""
    available = {instance_type.gpu for instance_type in data.catalog.rentable if not instance_type.retired}
    for gpu in data.catalog.gpus.values():
        sizes = [memory.gib for memory in gpu.memories]
        if not sizes or sizes != sorted(set(sizes)) or sizes[0] <= 0:
            yield DataProblem(gpu.name, f"its memory sizes are invalid: {', '.join(map(str, sizes)) or 'none'}")
        if not gpu.modules or ("open" in gpu.modules and gpu.sm < _FIRST_OPEN):
            yield DataProblem(gpu.name, f"its kernel modules are invalid: {', '.join(gpu.modules) or 'none'}")
        if gpu.nccl_link_gb_s is not None and not gpu.nvlink_links:
            yield DataProblem(gpu.name, "it has an NVLink rate but no NVLink links")
        if gpu.replacement is not None and gpu.replacement not in available:
            yield DataProblem(gpu.name, f"AWS does not offer its replacement {gpu.replacement}")


def check_bootstrap_drivers(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every GPU supports the driver branch and the kernel modules that the bootstrap installs."""
    for gpu in data.catalog.gpus.values():
        try:
            driver = driver_for(gpu.architecture)
        except RecipeError as err:
            yield DataProblem(gpu.name, str(err))
            continue
        if not (gpu.first_driver or 0) <= driver.branch <= (gpu.last_driver or driver.branch):
            yield DataProblem(gpu.name, f"the bootstrap's driver R{driver.branch} is outside its driver range")
        if driver.flavour not in gpu.modules:
            yield DataProblem(
                gpu.name, f"the bootstrap installs {driver.flavour} modules, which do not support the GPU"
            )


def check_gpu_sources(data: CatalogData) -> Iterator[DataProblem]:
    """Check that every field of a GPU has a source, even if its value is unknown."""
    names = [spec.name for spec in fields(Gpu) if spec.name != "sources"]
    for gpu in data.catalog.gpus.values():
        for name in names:
            if not gpu.sources.get(name):
                yield DataProblem(gpu.name, f"its {name} has no source")
