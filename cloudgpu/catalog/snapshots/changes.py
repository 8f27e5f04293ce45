"""List what a refresh changed by comparing the catalogs and readings before and after the refresh."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, TypeVar

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import InstanceType
from cloudgpu.catalog.snapshots.snapshot import CatalogSnapshot, RegionReadings

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
