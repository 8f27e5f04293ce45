"""`catalog refresh`: ask a target what it has and costs, lay it over the catalogue, and say what changed."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Protocol

from cloudgpu.backends.events import Emit
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.overlay import Overlay, Reading, RegionReadings, TypeFacts, merged
from cloudgpu.catalog.overlay_apply import apply, unknown_gpus
from cloudgpu.catalog.overlay_changes import Change, changes, summary
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError, UsageError
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.run.progress import Note
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, Entry
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
"""What is read, and where it comes from."""


class Source(BackendIdentity, Protocol):
    """Who tells. Every method raises `CloudGpuError` where it is refused or cannot be reached."""

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Types with NVIDIA GPUs that the region has."""

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Type -> zones that offer it."""

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Type -> USD an hour, of everything in the price list."""

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Type -> lowest and highest USD an hour."""

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """SSM parameter -> machine image."""

    def quotas(self, region: str) -> Mapping[str, int]:
        """Key of a quota -> vCPUs that may run."""


@dataclass(frozen=True)
class Unread:
    """A source that did not tell: what it tells of is as it was known before."""

    region: str
    part: str
    reason: str


@dataclass(frozen=True)
class Refreshed:
    """What a refresh came to."""

    entry: Entry
    target: str
    changes: tuple[Change, ...]
    unread: tuple[Unread, ...]
    left_out: Mapping[str, str]
    """New types whose GPU the catalogue does not know, with the GPU's name."""

    @property
    def simulated(self) -> bool:
        """Whether the figures are the rehearsal cloud's."""
        return self.target == "rehearsal"


@dataclass(frozen=True)
class Refreshing:
    """One target's refresh."""

    source: Source
    overlays: CatalogSnapshots
    shipped: Catalog
    clock: Clock
    emit: Emit

    def refresh(self, regions: Sequence[str], *, everywhere: bool = False) -> Refreshed:
        """Read these regions, or all that the account can use; what one does not tell leaves the others as told.

        Raises:
            UsageError: There is no such region.
            CloudGpuError: Nothing at all could be read; then nothing is written.
            StateError: The overlay that holds is damaged, or the home cannot be written.
        """
        wanted = self._regions(regions, everywhere=everywhere)
        before = self.overlays.current()
        account = self.source.account()
        self.emit(Note(f"asking {self.source.target} about {_counted(wanted)}"))
        read = dict(self._read(wanted, apply(self.shipped, before) if before else self.shipped))
        told = {place: one for place, one in read.items() if not isinstance(one, CloudGpuError)}
        refused = {place: one for place, one in read.items() if isinstance(one, CloudGpuError)}
        if not told:
            raise next(iter(refused.values()))
        fresh = Overlay(self.source.target, account, self.source.endpoint, _by_region(told))
        found: list[Change] = []

        def draft(old: Overlay | None) -> tuple[Overlay, str, list[str]]:
            now = merged(old, fresh, self.shipped, self.clock.now().date())
            was = apply(self.shipped, old) if old else self.shipped
            found.extend(changes(was, apply(self.shipped, now), old, now, wanted))
            return now, summary(found), [line(one) for one in found]

        laid = self.overlays.add(draft, at=self.clock.now(), regions=wanted)
        unread = tuple(Unread(region, part, err.message) for (region, part), err in sorted(refused.items(), key=_place))
        return Refreshed(laid.entry, self.source.target, tuple(found), unread, unknown_gpus(self.shipped, laid.overlay))

    def _regions(self, named: Sequence[str], *, everywhere: bool) -> tuple[str, ...]:
        strange = [one for one in named if one not in self.shipped.regions]
        usable = self.source.regions() if everywhere or strange else ()
        for region in strange:
            if region not in usable:
                message = f"unknown region {region}{suggestion(region, (*self.shipped.regions, *usable))}"
                raise UsageError(message, hint=f"known regions: {', '.join(self.shipped.regions)}")
        return tuple(sorted(usable)) if everywhere else tuple(dict.fromkeys(named))

    def _read(self, regions: Sequence[str], known: Catalog) -> Iterator[tuple[tuple[str, str], Any]]:
        """(region, part) -> its reading, or the error that it ended with."""
        source = self.source
        parameters = sorted({gpu.image for gpu in known.gpus.values()})
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            ask = self._asking(workers)
            types = {region: ask("types", source.types, region) for region in regions}
            sold = {region: _sold(types[region](), known, region) for region in regions}
            # The price list keeps types that are gone, and a price that is still known tells what one cost.
            listed = {kind.name for kind in known.rentable}
            zoned = {region: [kind.name for kind in known.rentable if region in kind.zones] for region in regions}
            priced = {region: [one.name for one in known.rentable if region in one.on_demand_usd] for region in regions}
            others: dict[str, Callable[[str], Mapping[str, Any]]] = {
                "zones": lambda one: _some(source.zones(one), sold[one], zoned[one]),
                "on_demand": lambda one: _some(source.on_demand(one), {*listed, *sold[one]}, priced[one]),
                "spot": lambda one: source.spot(one, sold[one]),
                "images": lambda one: source.images(one, parameters),
                "quotas": source.quotas,
            }
            asked = {(region, part): ask(part, call, region) for region in regions for part, call in others.items()}
            for region in regions:
                yield (region, "types"), types[region]()
                for part in others:
                    yield (region, part), asked[region, part]()
                if len(regions) > 1:
                    self.emit(Note(f"{region} has answered"))

    def _asking(self, workers: ThreadPoolExecutor) -> Callable[..., Callable[[], Any]]:
        def told(part: str, call: Callable[[str], Mapping[str, Any]], region: str) -> Any:  # noqa: ANN401
            try:
                rows = call(region)
            except CloudGpuError as err:
                return err
            return Reading(self.clock.now(), _SOURCES[part], dict(rows))

        return lambda part, call, region: workers.submit(told, part, call, region).result


def _counted(regions: Sequence[str]) -> str:
    return regions[0] if len(regions) == 1 else f"{len(regions)} regions"


def line(change: Change) -> str:
    """`p3dn.24xlarge us-east-1 price: 31.212 -> 29.5 USD/h (-5.5 %)`."""
    where = f" {change.region}" if change.region else ""
    unit = " USD/h" if change.kind.startswith(("price", "spot")) else " vCPUs" if change.kind == "quota" else ""
    if change.before and change.after:
        rose = "" if change.per_cent is None else f" ({change.per_cent:+} %)"
        moved = f"{change.before} -> {change.after}{unit}{rose}"
    else:
        moved = f"{change.after}{unit}" if change.after else f"was {change.before}{unit}"
    return f"{change.kind.replace('-', ' ')}: {change.what}{where}: {moved}"


def _sold(told: object, known: Catalog, region: str) -> list[str]:
    """Types of the region that plans can use: as described now, or where that failed as known before."""
    if isinstance(told, Reading):
        return [name for name, facts in told.rows.items() if name in known.types or facts.gpu in known.gpus]
    return sorted(kind.name for kind in known.rentable if region in kind.zones)


def _some(rows: Mapping[str, Any], names: Collection[str], before: Collection[str]) -> dict[str, Any]:
    """Of these names alone.

    Raises:
        CloudError: Nothing is told of anything that was known before: that is a source in trouble, not a region that
            gave up all of its GPUs over night.
    """
    found = {name: row for name, row in rows.items() if name in names}
    if before and not found:
        message = f"nothing was told of the {len(before)} GPU types that were known there"
        raise CloudError(message, code="Incomplete", hint="run it again")
    return found


def _by_region(told: Mapping[tuple[str, str], Any]) -> dict[str, RegionReadings]:
    parts: dict[str, dict[str, Any]] = {}
    for (region, part), reading in told.items():
        parts.setdefault(region, {})[part] = reading
    return {region: RegionReadings(**some) for region, some in parts.items()}


def _place(one: tuple[tuple[str, str], CloudGpuError]) -> tuple[str, str]:
    return one[0]
