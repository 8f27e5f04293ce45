"""Apply a snapshot to the catalog, returning a new catalog, and list what a refresh changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar, cast

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu, InstanceType, UsageClass
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings, TypeFacts

T = TypeVar("T")

Kind = Literal[
    "price", "price-new", "price-gone", "retired", "back", "type-new", "zone-new", "zone-gone",
    "image", "quota", "spot", "spot-new", "spot-gone",
]  # fmt: skip

_WORDS: Final[Mapping[Kind, tuple[str, str]]] = {
    "price": ("price changed", "prices changed"),
    "price-new": ("new price", "new prices"),
    "price-gone": ("price removed", "prices removed"),
    "retired": ("type retired", "types retired"),
    "back": ("type available again", "types available again"),
    "type-new": ("new type", "new types"),
    "zone-new": ("new zone", "new zones"),
    "zone-gone": ("zone removed", "zones removed"),
    "image": ("image updated", "images updated"),
    "quota": ("quota changed", "quotas changed"),
    "spot": ("spot price changed", "spot prices changed"),
    "spot-new": ("new spot price", "new spot prices"),
    "spot-gone": ("spot price removed", "spot prices removed"),
}
"""Singular and plural labels in display order. Changes that affect plans most come first."""
_USAGE: Final = frozenset({"on-demand", "spot", "capacity-block"})
_NEAR: Final = Decimal("0.1")
"""Maximum relative difference between a type's reported memory and the catalog's size for the same GPU.

EC2 reports the memory that the driver can use, a few percent less than the catalog's nominal size.
"""


@dataclass(frozen=True)
class Change:
    """A changed value. `before` is empty for a new value, and `after` is empty for a removed value."""

    kind: Kind
    what: str
    """Instance type, SSM parameter or `Quota.key`."""
    region: str
    """Empty for a change that affects every region."""
    before: str
    after: str

    @property
    def per_cent(self) -> Decimal | None:
        """Change of an on-demand price in percent; None for every other kind of change."""
        if self.kind != "price":
            return None
        before, after = Decimal(self.before), Decimal(self.after)
        return ((after - before) / before * 100).quantize(Decimal("0.1"))


def changes(
    before: Catalog, after: Catalog, was: CatalogSnapshot | None, now: CatalogSnapshot | None, regions: Sequence[str]
) -> tuple[Change, ...]:
    """Return every difference in these regions, in the order of `_WORDS`, then by name and region."""
    differences = [*_of_types(before, after, regions), *_of_readings(was, now, regions)]
    order = {kind: position for position, kind in enumerate(_WORDS)}
    return tuple(sorted(differences, key=lambda change: (order[change.kind], change.what, change.region, change.after)))


def summarize_changes(all_changes: Sequence[Change]) -> str:
    """Return a summary such as `3 prices changed, 1 type retired, 2 new zones`."""
    counts = {kind: sum(1 for change in all_changes if change.kind == kind) for kind in _WORDS}
    parts = [f"{count} {_WORDS[kind][count > 1]}" for kind, count in counts.items() if count]
    return ", ".join(parts) or "nothing changed"


def _of_types(before: Catalog, after: Catalog, regions: Sequence[str]) -> Iterator[Change]:
    for name in {**before.types, **after.types}:
        old, new = before.types.get(name), after.types.get(name)
        if new is None:
            continue  # only a reverted snapshot had the type
        if old is None:
            yield Change("type-new", name, "", "", f"{new.gpus} x {new.gpu} {new.gpu_memory_gib} GiB")
        elif new.retired and not old.retired:
            yield Change("retired", name, "", old.lifecycle, f"{new.lifecycle} since {new.retired_on}")
            continue  # a retirement includes the removal of its zones
        elif old.retired and not new.retired:
            yield Change("back", name, "", old.lifecycle, new.lifecycle)
        for region in regions:
            yield from _of_region(name, old, new, region)


def _of_region(name: str, old: InstanceType | None, new: InstanceType, region: str) -> Iterator[Change]:
    had = old.zones.get(region, ()) if old else ()
    has = new.zones.get(region, ())
    for zone in has:
        if zone not in had:
            yield Change("zone-new", name, region, "", zone)
    for zone in had:
        if zone not in has:
            yield Change("zone-gone", name, region, zone, "")
    was, now = old.on_demand_usd.get(region) if old else None, new.on_demand_usd.get(region)
    if was != now:
        kind: Kind = "price-new" if was is None else "price-gone" if now is None else "price"
        yield Change(kind, name, region, _usd(was), _usd(now))
    spot_was, spot_now = old.spot_usd.get(region) if old else None, new.spot_usd.get(region)
    if spot_was != spot_now:
        kind = "spot-new" if spot_was is None else "spot-gone" if spot_now is None else "spot"
        yield Change(kind, name, region, _span(spot_was), _span(spot_now))


def _of_readings(was: CatalogSnapshot | None, now: CatalogSnapshot | None, regions: Sequence[str]) -> Iterator[Change]:
    """Yield changes of images and quotas, which only snapshots contain. A first reading is not reported as a change."""
    for region in regions:
        old = was.regions.get(region, RegionReadings()) if was else RegionReadings()
        new = now.regions.get(region, RegionReadings()) if now else RegionReadings()
        if old.images and new.images:
            for name, before, after in _both(old.images.rows, new.images.rows):
                yield Change("image", name, region, before, after)
        if old.quotas and new.quotas:
            for code, limit, limit_now in _both(old.quotas.rows, new.quotas.rows):
                yield Change("quota", code, region, str(limit), str(limit_now))


def _both(old: Mapping[str, T], new: Mapping[str, T]) -> Iterator[tuple[str, T, T]]:
    """Yield the keys whose values differ, with both values; keys in only one mapping are omitted."""
    return ((name, old[name], new[name]) for name in old if name in new and old[name] != new[name])


def _usd(usd: Decimal | None) -> str:
    return "" if usd is None else str(usd)


def _span(pair: tuple[Decimal, Decimal] | None) -> str:
    return "" if pair is None else f"{pair[0]}-{pair[1]}"


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
