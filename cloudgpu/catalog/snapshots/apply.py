"""Apply a snapshot to the catalog, returning a new catalog."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, UsageClass
from cloudgpu.catalog.snapshots.snapshot import CatalogSnapshot, Reading, TypeFacts

T = TypeVar("T")

_USAGE: Final = frozenset({"on-demand", "spot", "capacity-block"})
_NEAR: Final = Decimal("0.1")
"""Maximum relative difference between a type's reported memory and the catalog's size for the same GPU.

EC2 reports the memory that the driver can use, a few percent less than the catalog's nominal size.
"""


def apply_snapshot(catalog: Catalog, snapshot: CatalogSnapshot) -> Catalog:
    """Return the catalog with the snapshot's types, zones, prices and regions.

    A reading replaces the bundled data of its region, so a type that is missing from the region's price list has no
    price there. The bundled data is kept for regions and sources without a reading and for machines outside AWS. The
    bundled prices are also kept if they are newer than the reading.
    """
    names = {
        name for readings in snapshot.regions.values() if readings.types is not None for name in readings.types.rows
    }
    types = {instance_type.name: _updated(instance_type, snapshot) for instance_type in catalog.types.values()}
    for name in sorted(names - types.keys()):
        new = _new(name, catalog.gpus, snapshot)
        if new is not None:
            types[name] = _updated(new, snapshot)
    regions = dict.fromkeys((*catalog.regions, *sorted(snapshot.regions)))
    return replace(catalog, types=types, regions=tuple(regions))


def unknown_gpus(catalog: Catalog, snapshot: CatalogSnapshot) -> dict[str, str]:
    """Return the types that cannot be added because the catalog lacks their GPU, with the names of the missing GPUs."""
    return {
        name: facts.gpu
        for readings in snapshot.regions.values()
        if readings.types is not None
        for name, facts in readings.types.rows.items()
        if name not in catalog.types and facts.gpu not in catalog.gpus
    }


def _updated(instance_type: InstanceType, snapshot: CatalogSnapshot) -> InstanceType:
    if instance_type.provider != "aws":
        return instance_type
    zones, on_demand, spot = dict(instance_type.zones), dict(instance_type.on_demand_usd), dict(instance_type.spot_usd)
    read_on = dict(instance_type.rates_read_on)
    for region, readings in snapshot.regions.items():
        bundled_on = instance_type.price_read_on(region)
        listed, seen = _newer(readings.on_demand, bundled_on), _newer(readings.spot, bundled_on)
        _put(zones, region, readings.zones, instance_type.name)
        _put(on_demand, region, listed, instance_type.name)
        _put(spot, region, seen, instance_type.name)
        day = _priced_on(instance_type, region, listed, seen)
        if day is not None:
            read_on[region] = day
    updated = replace(
        instance_type,
        zones=zones,
        on_demand_usd=on_demand,
        spot_usd=spot,
        rates_read_on=read_on,
        sources={**instance_type.sources, **_sources(instance_type, snapshot)},
    )
    return _with_lifecycle(updated, snapshot)


def _newer(reading: Reading[T] | None, bundled_on: date) -> Reading[T] | None:
    """Return the reading, or None if it is older than the bundled prices of its region."""
    return reading if reading is not None and reading.at.date() >= bundled_on else None


def _sources(instance_type: InstanceType, snapshot: CatalogSnapshot) -> dict[str, str]:
    """Return the sources of zones and prices that have readings. Each text starts with the bundled source."""
    sources = {}
    for part, field in (("zones", "zones"), ("on_demand", "on_demand_usd"), ("spot", "spot_usd")):
        read = {region: getattr(readings, part) for region, readings in sorted(snapshot.regions.items())}
        read = {
            region: reading
            for region, reading in read.items()
            if reading is not None and _newer(reading, instance_type.price_read_on(region)) is not None
        }
        if read:
            where, source = ", ".join(read), next(iter(read.values())).source
            bundled = instance_type.sources.get(field, "")
            sources[field] = "; ".join(filter(None, (bundled, f"{where}: {source}, read later")))
    return sources


def _put(values: dict[str, T], region: str, reading: Reading[T] | None, name: str) -> None:
    """Set a region's value from a reading, or remove the value if the reading lacks the type. None changes nothing."""
    if reading is None:
        return
    if name in reading.rows:
        values[region] = reading.rows[name]
    else:
        values.pop(region, None)


def _priced_on(
    instance_type: InstanceType,
    region: str,
    on_demand: Reading[Decimal] | None,
    spot: Reading[tuple[Decimal, Decimal]] | None,
) -> date | None:
    """Return the date of the older price, because one date must cover both; None if neither price was read."""
    if on_demand is None and spot is None:
        return None
    days = []
    for reading, bundled in (
        (on_demand, region in instance_type.on_demand_usd),
        (spot, region in instance_type.spot_usd),
    ):
        if reading is not None:
            days.append(reading.at.date())
        elif bundled:
            days.append(instance_type.price_read_on(region))
    return min(days)


def _with_lifecycle(instance_type: InstanceType, snapshot: CatalogSnapshot) -> InstanceType:
    """Return the type marked as retired if the snapshot lists it as such, or as available again if EC2 describes it."""
    retirement = snapshot.retired.get(instance_type.name)
    if retirement is not None:
        return replace(instance_type, lifecycle="retired", retired_on=retirement.on)
    described = _described(instance_type.name, snapshot)
    if described is None:
        return instance_type
    usage = tuple(cast("UsageClass", usage_class) for usage_class in described.usage_classes if usage_class in _USAGE)
    available = replace(instance_type, usage_classes=usage or instance_type.usage_classes)
    return replace(available, lifecycle="previous", retired_on=None) if instance_type.retired else available


def _described(name: str, snapshot: CatalogSnapshot) -> TypeFacts | None:
    """Return the facts of a type from the most recently read region that describes it; None if no region does."""
    readings_with_type = [
        readings.types
        for readings in snapshot.regions.values()
        if readings.types is not None and name in readings.types.rows
    ]
    if not readings_with_type:
        return None
    return max(readings_with_type, key=lambda reading: reading.at).rows[name]


def _new(name: str, gpus: Mapping[str, Gpu], snapshot: CatalogSnapshot) -> InstanceType | None:
    """Return a type that the catalog lacks; None if the GPU is unknown, because plans could not check such a type."""
    facts = _described(name, snapshot)
    if facts is None or facts.gpu not in gpus:
        return None
    reading = min(readings.types.at for readings in snapshot.regions.values() if readings.types is not None)
    fields: dict[str, Any] = {
        "gpu": facts.gpu,
        "gpus": facts.gpus,
        "gpu_memory_gib": _nominal_memory(facts.gpu_memory_gib, gpus[facts.gpu]),
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
        gpudirect_rdma=False,  # EC2 does not report it, and a wrong True does more harm than a wrong False
        lifecycle="active" if facts.current else "previous",
        retired_on=None,
        replacement=None,
        zones={},
        on_demand_usd={},
        spot_usd={},
        priced_on=reading.date(),
        source=f"read from {snapshot.target} on {reading.date()}",
        sources={"hardware": f"EC2 DescribeInstanceTypes, read on {reading.date()}"},
        **fields,
    )


def _nominal_memory(read_gib: Decimal, gpu: Gpu) -> Decimal:
    near = [memory.gib for memory in gpu.memories if abs(memory.gib - read_gib) <= memory.gib * _NEAR]
    return min(near, key=lambda gib: abs(gib - read_gib), default=read_gib)
