"""Check instance types for known hardware, available replacements, plausible prices and sources."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.checking.known import CatalogData, DataProblem
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.catalog.unsupported import every_entry

_ALWAYS: Final = ("hardware", "lifecycle", "network", "nvme", "usage_classes", "gpudirect_rdma", "nvlink")
_IF_PRESENT: Final = ("zones", "on_demand_usd", "spot_usd", "capacity_block_usd", "replacement")


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
