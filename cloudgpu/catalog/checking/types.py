"""Checks of instance types: known hardware, useful replacements, plausible prices."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog.checking.known import DataProblem, Known
from cloudgpu.catalog.hardware import InstanceType

_ALWAYS: Final = ("hardware", "lifecycle", "network", "nvme", "usage_classes", "gpudirect_rdma", "nvlink")
_WHERE_GIVEN: Final = ("zones", "on_demand_usd", "spot_usd", "capacity_block_usd", "replacement")


def hardware_known(given: Known) -> Iterator[DataProblem]:
    """Check that every type has a known GPU and memory size, and no more EFA interfaces than network cards."""
    for kind in given.catalog.types.values():
        gpu = given.catalog.gpus.get(kind.gpu)
        if gpu is None:
            yield DataProblem(kind.name, f"its GPU {kind.gpu} is not in the catalogue")
            continue
        if kind.gpu_memory_gib not in [memory.gib for memory in gpu.memories]:
            yield DataProblem(kind.name, f"{kind.gpu} does not come with {kind.gpu_memory_gib} GiB")
        if kind.nvlink and gpu.nvlink_links == 0:
            yield DataProblem(kind.name, f"its GPUs are joined by NVLink, and {kind.gpu} has no links")
        if min(kind.gpus, kind.vcpus, kind.memory_gib) < 1:
            yield DataProblem(kind.name, "it has no GPUs, processors or memory")
        if kind.efa_interfaces > kind.network_cards:
            yield DataProblem(kind.name, f"{kind.efa_interfaces} EFA interfaces on {kind.network_cards} network cards")


def end_told(given: Known) -> Iterator[DataProblem]:
    """Check that retired types have a date and a replacement, and that others are offered somewhere."""
    for kind in given.catalog.rentable:
        if not kind.retired:
            if kind.retired_on is not None:
                yield DataProblem(kind.name, "it has a day of retirement and is not retired")
            if not kind.zones:
                yield DataProblem(kind.name, "it is not retired and is offered nowhere")
            continue
        if kind.retired_on is None:
            yield DataProblem(kind.name, "it is retired, and nobody knows since when")
        if kind.zones:
            yield DataProblem(kind.name, "it is retired and still offered")
        instead = given.catalog.types.get(kind.replacement or "")
        if instead is None or instead.retired or instead.provider != "aws":
            yield DataProblem(kind.name, f"its replacement {kind.replacement} does not work")


def offers_sound(given: Known) -> Iterator[DataProblem]:
    """Check that zones and prices are in known regions, and that machines outside AWS are offered nowhere."""
    regions = frozenset(given.catalog.regions)
    for kind in given.catalog.types.values():
        named = {*kind.zones, *kind.on_demand_usd, *kind.spot_usd, *kind.capacity_block_usd}
        for region in sorted(named - regions):
            yield DataProblem(kind.name, f"the region {region} is not in the catalogue")
        for region, zones in kind.zones.items():
            if not zones or any(zone[:-1] != region for zone in zones):
                yield DataProblem(kind.name, f"the zones of {region} are {', '.join(zones) or 'none'}")
        if kind.provider != "aws" and named:
            yield DataProblem(kind.name, f"{kind.provider} has it, and it has offers of AWS")


def prices_sound(given: Known) -> Iterator[DataProblem]:
    """Check that prices are positive, spot is at most on-demand, and only suitable types have block prices."""
    for kind in given.catalog.types.values():
        for region, usd in (*kind.on_demand_usd.items(), *kind.capacity_block_usd.items()):
            if usd <= 0:
                yield DataProblem(kind.name, f"{usd} USD an hour in {region}")
        if kind.capacity_block_usd and "capacity-block" not in kind.usage_classes:
            yield DataProblem(kind.name, "it has prices of Capacity Blocks, and EC2 does not sell it so")
        for region, (low, high) in kind.spot_usd.items():
            if not 0 < low <= high <= kind.on_demand_usd.get(region, high):
                yield DataProblem(kind.name, f"spot from {low} to {high} USD an hour in {region}")


def types_sourced(given: Known) -> Iterator[DataProblem]:
    """Check that every figure of a type has a source."""
    for kind in given.catalog.types.values():
        for figure in _figures(kind):
            if not kind.sources.get(figure):
                yield DataProblem(kind.name, f"nothing says where its {figure} comes from")
        if not kind.source:
            yield DataProblem(kind.name, "nothing says where its prices come from")


def _figures(kind: InstanceType) -> Iterator[str]:
    yield from _ALWAYS
    for name in _WHERE_GIVEN:
        if getattr(kind, name):
            yield name
