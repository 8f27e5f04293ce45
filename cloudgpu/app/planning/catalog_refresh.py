"""`catalog refresh`: read types, prices, images and quotas from a target, store a snapshot and report the changes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

from cloudgpu.backends.events import Emit
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.snapshot import Overlay, Reading, RegionReadings, TypeFacts, merged
from cloudgpu.catalog.snapshot_apply import apply, unknown_gpus
from cloudgpu.catalog.snapshot_changes import Change, changes, summary
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError, UsageError
from cloudgpu.recipe.name_suggestions import suggestion
from cloudgpu.run.progress import Note
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, SnapshotEntry
from cloudgpu.state.identity import BackendIdentity

_AT_ONCE: Final = 16
_SOURCES: Final[Mapping[str, str]] = {
    "types": "EC2 DescribeInstanceTypes",
    "zones": "EC2 DescribeInstanceTypeOfferings",
    "on_demand": "Pricing GetProducts",
    "spot": "EC2 DescribeSpotPriceHistory, Linux/UNIX, last 24 h",
    "images": "SSM GetParameter",
    "quotas": "Service Quotas ListServiceQuotas",
}
"""Part of the catalogue -> API that it is read from."""


class CatalogSource(BackendIdentity, Protocol):
    """Reads catalogue data from a target. Every method raises `CloudGpuError` if the request fails."""

    def regions(self) -> Sequence[str]:
        """Return every region that the account can use."""

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones that offer each instance type."""

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the price in USD per hour of every instance type in the price list."""

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and highest price in USD per hour of each type."""

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image of each SSM parameter."""

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""


@dataclass(frozen=True)
class Unread:
    """A part of the catalogue that could not be read; the previous data stays in use."""

    region: str
    part: str
    reason: str


@dataclass(frozen=True)
class RefreshResult:
    """The outcome of a refresh."""

    entry: SnapshotEntry
    target: str
    changes: tuple[Change, ...]
    unread: tuple[Unread, ...]
    left_out: Mapping[str, str]
    """New instance types whose GPU is not in the catalogue -> name of that GPU."""

    @property
    def simulated(self) -> bool:
        """Whether the data comes from the rehearsal cloud."""
        return self.target == "rehearsal"


@dataclass(frozen=True)
class CatalogRefresh:
    """One target's refresh."""

    source: CatalogSource
    overlays: CatalogSnapshots
    shipped: Catalog
    clock: Clock
    emit: Emit

    def refresh(self, regions: Sequence[str], *, everywhere: bool = False) -> RefreshResult:
        """Read these regions, or every region that the account can use.

        A part that cannot be read keeps its previous data and does not affect the others.

        Raises:
            UsageError: A region does not exist.
            CloudGpuError: Nothing could be read. No snapshot is written.
            StateError: The active snapshot is damaged, or the home directory cannot be written.
        """
        to_read = self._regions(regions, everywhere=everywhere)
        before = self.overlays.current()
        account = self.source.account()
        self.emit(Note(f"reading the catalogue of {_counted(to_read)} from {self.source.target}"))
        read = dict(self._read(to_read, apply(self.shipped, before) if before else self.shipped))
        readings = {key: reading for key, reading in read.items() if not isinstance(reading, CloudGpuError)}
        errors = {key: error for key, error in read.items() if isinstance(error, CloudGpuError)}
        if not readings:
            raise next(iter(errors.values()))
        fresh = Overlay(self.source.target, account, self.source.endpoint, _by_region(readings))
        changed: list[Change] = []

        def draft(old: Overlay | None) -> tuple[Overlay, str, list[str]]:
            now = merged(old, fresh, self.shipped, self.clock.now().date())
            was = apply(self.shipped, old) if old else self.shipped
            changed.extend(changes(was, apply(self.shipped, now), old, now, to_read))
            return now, summary(changed), [line(change) for change in changed]

        added = self.overlays.add(draft, at=self.clock.now(), regions=to_read)
        unread = tuple(Unread(region, part, err.message) for (region, part), err in sorted(errors.items(), key=_key))
        return RefreshResult(
            added.entry, self.source.target, tuple(changed), unread, unknown_gpus(self.shipped, added.overlay)
        )

    def _regions(self, named: Sequence[str], *, everywhere: bool) -> tuple[str, ...]:
        unknown = [region for region in named if region not in self.shipped.regions]
        usable = self.source.regions() if everywhere or unknown else ()
        for region in unknown:
            if region not in usable:
                message = f"unknown region {region}{suggestion(region, (*self.shipped.regions, *usable))}"
                raise UsageError(message, hint=f"known regions: {', '.join(self.shipped.regions)}")
        return tuple(sorted(usable)) if everywhere else tuple(dict.fromkeys(named))

    def _read(self, regions: Sequence[str], known: Catalog) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield ((region, part), reading or error)."""
        source = self.source
        parameters = sorted({gpu.image for gpu in known.gpus.values()})
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            ask = self._asking(workers)
            types = {region: ask("types", source.types, region) for region in regions}
            sold = {region: _sold(types[region](), known, region) for region in regions}
            # The price list still contains retired types; their prices are kept to show what they cost.
            listed = {kind.name for kind in known.rentable}
            zoned = {region: [kind.name for kind in known.rentable if region in kind.zones] for region in regions}
            priced = {
                region: [kind.name for kind in known.rentable if region in kind.on_demand_usd] for region in regions
            }
            others: dict[str, Callable[[str], Mapping[str, Any]]] = {
                "zones": lambda region: _some(source.zones(region), sold[region], zoned[region]),
                "on_demand": lambda region: _some(source.on_demand(region), {*listed, *sold[region]}, priced[region]),
                "spot": lambda region: source.spot(region, sold[region]),
                "images": lambda region: source.images(region, parameters),
                "quotas": source.quotas,
            }
            pending = {(region, part): ask(part, call, region) for region in regions for part, call in others.items()}
            for region in regions:
                yield (region, "types"), types[region]()
                for part in others:
                    yield (region, part), pending[region, part]()
                if len(regions) > 1:
                    self.emit(Note(f"read {region}"))

    def _asking(self, workers: ThreadPoolExecutor) -> Callable[..., Callable[[], Any]]:
        def read(part: str, call: Callable[[str], Mapping[str, Any]], region: str) -> Any:  # noqa: ANN401
            try:
                rows = call(region)
            except CloudGpuError as err:
                return err
            return Reading(self.clock.now(), _SOURCES[part], dict(rows))

        return lambda part, call, region: workers.submit(read, part, call, region).result


def _counted(regions: Sequence[str]) -> str:
    return regions[0] if len(regions) == 1 else f"{len(regions)} regions"


def line(change: Change) -> str:
    """Format a change, for example `price: p3dn.24xlarge us-east-1: 31.212 -> 29.5 USD/h (-5.5 %)`."""
    where = f" {change.region}" if change.region else ""
    unit = " USD/h" if change.kind.startswith(("price", "spot")) else " vCPUs" if change.kind == "quota" else ""
    if change.before and change.after:
        percent = "" if change.per_cent is None else f" ({change.per_cent:+} %)"
        values = f"{change.before} -> {change.after}{unit}{percent}"
    else:
        values = f"{change.after}{unit}" if change.after else f"was {change.before}{unit}"
    return f"{change.kind.replace('-', ' ')}: {change.what}{where}: {values}"


def _sold(types: object, known: Catalog, region: str) -> list[str]:
    """Return the usable instance types of a region, or those of the previous catalog if the request failed."""
    if isinstance(types, Reading):
        return [name for name, facts in types.rows.items() if name in known.types or facts.gpu in known.gpus]
    return sorted(kind.name for kind in known.rentable if region in kind.zones)


def _some(rows: Mapping[str, Any], names: Collection[str], before: Collection[str]) -> dict[str, Any]:
    """Return the rows of these names.

    Raises:
        CloudError: The response contains none of the types that were known before. That indicates an incomplete
            response rather than a region that dropped all of its GPUs.
    """
    listed_rows = {name: row for name, row in rows.items() if name in names}
    if before and not listed_rows:
        message = f"the response lists none of the {len(before)} GPU types known in this region"
        raise CloudError(message, code="Incomplete", hint="run it again")
    return listed_rows


def _by_region(readings: Mapping[tuple[str, str], Any]) -> dict[str, RegionReadings]:
    parts: dict[str, dict[str, Any]] = {}
    for (region, part), reading in readings.items():
        parts.setdefault(region, {})[part] = reading
    return {region: RegionReadings(**fields) for region, fields in parts.items()}


def _key(item: tuple[tuple[str, str], CloudGpuError]) -> tuple[str, str]:
    return item[0]
