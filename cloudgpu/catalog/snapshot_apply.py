"""Apply a snapshot to the catalog, returning a new catalog."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, UsageClass
from cloudgpu.catalog.snapshot import Overlay, Reading, TypeFacts

T = TypeVar("T")

_USAGE: Final = frozenset({"on-demand", "spot", "capacity-block"})
_NEAR: Final = Decimal("0.1")
"""EC2 tells what the driver can use of a GPU's memory, some per cent less than the size that it is sold by."""


def apply(catalog: Catalog, overlay: Overlay) -> Catalog:
    """Return the catalog with the snapshot's types, zones, prices and regions.

    A region that was read is replaced: a type missing from its price list has no price there. Regions and sources that
    were not read keep the bundled data, as do machines outside AWS.
    """
    names = {
        name for readings in overlay.regions.values() if readings.types is not None for name in readings.types.rows
    }
    types = {kind.name: _relaid(kind, overlay) for kind in catalog.types.values()}
    for name in sorted(names - types.keys()):
        new = _new(name, catalog.gpus, overlay)
        if new is not None:
            types[name] = _relaid(new, overlay)
    regions = dict.fromkeys((*catalog.regions, *sorted(overlay.regions)))
    return replace(catalog, types=types, regions=tuple(regions))


def unknown_gpus(catalog: Catalog, overlay: Overlay) -> dict[str, str]:
    """Return the types that cannot be added because their GPU is not in the catalog, with the GPU's name."""
    return {
        name: facts.gpu
        for readings in overlay.regions.values()
        if readings.types is not None
        for name, facts in readings.types.rows.items()
        if name not in catalog.types and facts.gpu not in catalog.gpus
    }


def _relaid(kind: InstanceType, overlay: Overlay) -> InstanceType:
    if kind.provider != "aws":
        return kind
    zones, on_demand, spot = dict(kind.zones), dict(kind.on_demand_usd), dict(kind.spot_usd)
    read_on = dict(kind.rates_read_on)
    for region, readings in overlay.regions.items():
        listed, seen = _newer(readings.on_demand, kind), _newer(readings.spot, kind)
        _put(zones, region, readings.zones, kind.name)
        _put(on_demand, region, listed, kind.name)
        _put(spot, region, seen, kind.name)
        day = _priced_on(kind, region, listed, seen)
        if day is not None:
            read_on[region] = day
    laid = replace(
        kind,
        zones=zones,
        on_demand_usd=on_demand,
        spot_usd=spot,
        rates_read_on=read_on,
        sources={**kind.sources, **_sources(kind, overlay)},
    )
    return _living(laid, overlay)


def _newer(reading: Reading[T] | None, kind: InstanceType) -> Reading[T] | None:
    """Return a reading, or None if its prices are older than the bundled ones."""
    return reading if reading is not None and reading.at.date() >= kind.priced_on else None


def _sources(kind: InstanceType, overlay: Overlay) -> dict[str, str]:
    """Return the sources of the figures, bundled ones first."""
    told = {}
    for part, field in (("zones", "zones"), ("on_demand", "on_demand_usd"), ("spot", "spot_usd")):
        read = {region: getattr(readings, part) for region, readings in sorted(overlay.regions.items())}
        read = {
            region: reading
            for region, reading in read.items()
            if reading is not None and _newer(reading, kind) is not None
        }
        if read:
            where, source = ", ".join(read), next(iter(read.values())).source
            told[field] = "; ".join(filter(None, (kind.sources.get(field, ""), f"{where}: {source}, read since")))
    return told


def _put(table: dict[str, T], region: str, reading: Reading[T] | None, name: str) -> None:
    """Set a region's figure from a reading; remove it if the reading lacks it, and keep it without a reading."""
    if reading is None:
        return
    if name in reading.rows:
        table[region] = reading.rows[name]
    else:
        table.pop(region, None)


def _priced_on(
    kind: InstanceType, region: str, on_demand: Reading[Decimal] | None, spot: Reading[tuple[Decimal, Decimal]] | None
) -> date | None:
    """Return the earlier of the two dates, because one date covers both prices; None while one is still bundled."""
    if on_demand is None and spot is None:
        return None
    days = []
    for reading, shipped in ((on_demand, region in kind.on_demand_usd), (spot, region in kind.spot_usd)):
        if reading is not None:
            days.append(reading.at.date())
        elif shipped:
            days.append(kind.priced_on)
    return min(days)


def _living(kind: InstanceType, overlay: Overlay) -> InstanceType:
    """Return the type as retired from the snapshot's date, or as available again if EC2 describes it."""
    gone = overlay.retired.get(kind.name)
    if gone is not None:
        return replace(kind, lifecycle="retired", retired_on=gone.on)
    described = _described(kind.name, overlay)
    if described is None:
        return kind
    told = tuple(cast("UsageClass", usage_class) for usage_class in described.usage_classes if usage_class in _USAGE)
    sold = replace(kind, usage_classes=told or kind.usage_classes)
    return replace(sold, lifecycle="previous", retired_on=None) if kind.retired else sold


def _described(name: str, overlay: Overlay) -> TypeFacts | None:
    """Return the facts of a type from the region that was read last."""
    found = [
        readings.types
        for readings in overlay.regions.values()
        if readings.types is not None and name in readings.types.rows
    ]
    return max(found, key=lambda reading: reading.at).rows[name] if found else None


def _new(name: str, gpus: Mapping[str, Gpu], overlay: Overlay) -> InstanceType | None:
    """Return a type that the catalog lacks, or None if its GPU is unknown, because no check would be reliable."""
    facts = _described(name, overlay)
    if facts is None or facts.gpu not in gpus:
        return None
    reading = min(readings.types.at for readings in overlay.regions.values() if readings.types is not None)
    fields: dict[str, Any] = {
        "gpu": facts.gpu,
        "gpus": facts.gpus,
        "gpu_memory_gib": _sold_size(facts.gpu_memory_gib, gpus[facts.gpu]),
        "vcpus": facts.vcpus,
        "memory_gib": facts.memory_gib,
        "efa_interfaces": facts.efa_interfaces,
        "network_cards": facts.network_cards,
        "network": facts.network,
        "nvme_disks": facts.nvme_disks,
        "nvme_gb": facts.nvme_gb,
    }
    return InstanceType(
        name=name,
        gpudirect_rdma=False,  # EC2 does not describe it, and a promise that is not kept costs more than none
        lifecycle="active" if facts.current else "previous",
        retired_on=None,
        replacement=None,
        zones={},
        on_demand_usd={},
        spot_usd={},
        priced_on=reading.date(),
        source=f"read from {overlay.target} on {reading.date()}",
        sources={"hardware": f"EC2 DescribeInstanceTypes, read on {reading.date()}"},
        **fields,
    )


def _sold_size(read_gib: Decimal, gpu: Gpu) -> Decimal:
    near = [memory.gib for memory in gpu.memories if abs(memory.gib - read_gib) <= memory.gib * _NEAR]
    return min(near, key=lambda gib: abs(gib - read_gib), default=read_gib)
