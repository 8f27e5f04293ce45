"""`catalog refresh` and `catalog show`: store a snapshot, and report its changes and age."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from cloudgpu.backends.base import CatalogSource
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.snapshot import (
    PARTS,
    CatalogSnapshot,
    Reading,
    RegionReadings,
    Retirement,
    merge_snapshots,
)
from cloudgpu.catalog.snapshot_changes import Change, apply_snapshot, changes, summarize_changes, unknown_gpus
from cloudgpu.catalog.unsupported import unsupported_partition
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError, UsageError
from cloudgpu.recipe.problem import suggestion
from cloudgpu.run.progress import Emit, Note, report_count
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, SnapshotEntry
from cloudgpu.state.identifiers import BackendIdentity
from cloudgpu.targets import is_simulated
from cloudgpu.workers import Workers

_AT_ONCE: Final = 16
_SOURCES: Final[Mapping[str, str]] = {
    "types": "EC2 DescribeInstanceTypes",
    "zones": "EC2 DescribeInstanceTypeOfferings",
    "on_demand": "Pricing GetProducts",
    "spot": "EC2 DescribeSpotPriceHistory, Linux/UNIX, last 24 h",
    "images": "SSM GetParameter",
    "quotas": "Service Quotas ListServiceQuotas",
}
"""Catalog part -> API that provides it."""


@dataclass(frozen=True)
class CatalogReading:
    """Where and when one part of a region's catalog data was read, and its number of rows."""

    region: str
    part: str
    rows: int
    at: datetime
    source: str


@dataclass(frozen=True)
class CatalogStatus:
    """The status of one target's catalog data: its sources and age.

    Attributes:
        entry: The active snapshot, or None if only the bundled catalog is in use.
        shipped_priced_on: The oldest and newest dates on which the bundled AWS prices were read.
        sources: The distinct sources of the bundled prices.
    """

    target: str
    entry: SnapshotEntry | None
    known: tuple[CatalogReading, ...]
    retired: dict[str, Retirement]
    shipped_priced_on: tuple[date, date]
    shipped_types: int
    sources: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether the data comes from the rehearsal cloud."""
        return is_simulated(self.target)


def read_catalog_status(snapshots: CatalogSnapshots, target: str, shipped: Catalog, region: str = "") -> CatalogStatus:
    """Return the sources and age of the catalog data for one region, or for every region in the snapshot.

    Raises:
        StateError: The snapshot is damaged.
    """
    history = snapshots.history()
    snapshot = snapshots.current()
    priced = [instance_type for instance_type in shipped.rentable if instance_type.on_demand_usd]
    days = sorted(
        {
            instance_type.price_read_on(region)
            for instance_type in priced
            for region in ("", *instance_type.on_demand_usd)
        }
    )
    return CatalogStatus(
        target=target,
        entry=history.entry(history.current),
        known=tuple(_known(snapshot, region)) if snapshot else (),
        retired=dict(snapshot.retired) if snapshot else {},
        shipped_priced_on=(days[0], days[-1]),
        shipped_types=len(shipped.rentable),
        sources=tuple(dict.fromkeys(instance_type.source for instance_type in priced)),
    )


def _known(snapshot: CatalogSnapshot, region: str) -> Iterator[CatalogReading]:
    for name, readings in sorted(snapshot.regions.items()):
        for part in PARTS if region in ("", name) else ():
            reading = getattr(readings, part)
            if reading is not None:
                yield CatalogReading(name, part, len(reading.rows), reading.at, reading.source)


@dataclass(frozen=True)
class UnreadPart:
    """A catalog part that could not be read. Its previous data stays in use."""

    region: str
    part: str
    reason: str


@dataclass(frozen=True)
class RefreshResult:
    """Outcome of a catalog refresh."""

    entry: SnapshotEntry
    target: str
    changes: tuple[Change, ...]
    unread: tuple[UnreadPart, ...]
    left_out: Mapping[str, str]
    """New instance type whose GPU is not in the catalog -> name of that GPU."""

    @property
    def simulated(self) -> bool:
        """Whether the data comes from the rehearsal cloud."""
        return is_simulated(self.target)


@dataclass(frozen=True)
class CatalogRefresh:
    """Refreshes the catalog data of one target."""

    backend: BackendIdentity
    source: CatalogSource
    snapshots: CatalogSnapshots
    shipped: Catalog
    clock: Clock
    emit: Emit

    def refresh(self, regions: Sequence[str], *, everywhere: bool = False) -> RefreshResult:
        """Read the catalog data of these regions, or of every region that the account can use, and store a snapshot.

        A part that cannot be read keeps its previous data; the remaining parts are still updated.

        Raises:
            UsageError: A region is unknown.
            CloudGpuError: Nothing could be read. No snapshot is written.
            StateError: The active snapshot is damaged, or the state home cannot be written.
        """
        to_read = self._regions(regions, everywhere=everywhere)
        before = self.snapshots.current()
        account = self.backend.account()
        self.emit(Note(f"reading catalog data for {_region_count(to_read)} from {self.backend.target}"))
        read = dict(self._read(to_read, apply_snapshot(self.shipped, before) if before else self.shipped))
        readings = {key: reading for key, reading in read.items() if not isinstance(reading, CloudGpuError)}
        errors = {key: error for key, error in read.items() if isinstance(error, CloudGpuError)}
        if not readings:
            raise next(iter(errors.values()))
        fresh = CatalogSnapshot(self.backend.target, account, self.backend.endpoint, _by_region(readings))
        changed: list[Change] = []

        def draft(old: CatalogSnapshot | None) -> tuple[CatalogSnapshot, str, list[str]]:
            new = merge_snapshots(old, fresh, self.shipped, self.clock.now().date())
            old_catalog = apply_snapshot(self.shipped, old) if old else self.shipped
            changed.extend(changes(old_catalog, apply_snapshot(self.shipped, new), old, new, to_read))
            return new, summarize_changes(changed), [change_line(change) for change in changed]

        added = self.snapshots.add(draft, at=self.clock.now(), regions=to_read)
        unread = tuple(
            UnreadPart(region, part, err.message) for (region, part), err in sorted(errors.items(), key=_key)
        )
        return RefreshResult(
            added.entry, self.backend.target, tuple(changed), unread, unknown_gpus(self.shipped, added.snapshot)
        )

    def _regions(self, requested: Sequence[str], *, everywhere: bool) -> tuple[str, ...]:
        for region in requested:
            if unsupported := unsupported_partition(region):
                raise UsageError(unsupported, hint="use a region of the partition aws, such as us-east-1")
        unknown = [region for region in requested if region not in self.shipped.regions]
        usable = self.source.regions() if everywhere or unknown else ()
        for region in unknown:
            if region not in usable:
                message = f"unknown region {region}{suggestion(region, (*self.shipped.regions, *usable))}"
                raise UsageError(message, hint=f"known regions: {', '.join(self.shipped.regions)}")
        return tuple(sorted(usable)) if everywhere else tuple(dict.fromkeys(requested))

    def _read(self, regions: Sequence[str], known: Catalog) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield a ((region, part), reading or error) pair for every part of every region."""
        source = self.source
        parameters = sorted({gpu.image for gpu in known.gpus.values()})
        with Workers(_AT_ONCE) as workers:
            submit = self._submitter(workers)
            types = {region: submit("types", source.types, region) for region in regions}
            offered = {region: _offered_types(types[region](), known, region) for region in regions}
            # AWS's price list still contains retired types. Keep their prices, so that the catalog can show them.
            listed = {instance_type.name for instance_type in known.rentable}
            rentable = known.rentable
            zoned = {region: [entry.name for entry in rentable if region in entry.zones] for region in regions}
            priced = {region: [entry.name for entry in rentable if region in entry.on_demand_usd] for region in regions}
            calls: dict[str, Callable[[str], Mapping[str, Any]]] = {
                "zones": lambda region: _rows_for(source.zones(region), offered[region], zoned[region]),
                "on_demand": lambda region: _rows_for(
                    source.on_demand(region), {*listed, *offered[region]}, priced[region]
                ),
                "spot": lambda region: source.spot(region, offered[region]),
                "images": lambda region: source.images(region, parameters),
                "quotas": source.quotas,
            }
            pending = {(region, part): submit(part, call, region) for region in regions for part, call in calls.items()}
            with report_count(self.emit, "reading", len(regions), "regions") as step:
                for region in regions:
                    yield (region, "types"), types[region]()
                    for part in calls:
                        yield (region, part), pending[region, part]()
                    step()
                    if len(regions) > 1:
                        self.emit(Note(f"read {region}", detail=True))

    def _submitter(self, workers: Workers) -> Callable[..., Callable[[], Any]]:
        def read(part: str, call: Callable[[str], Mapping[str, Any]], region: str) -> Any:  # noqa: ANN401
            try:
                rows = call(region)
            except CloudGpuError as err:
                return err
            return Reading(self.clock.now(), _SOURCES[part], dict(rows))

        return lambda part, call, region: workers.submit(read, part, call, region).result


def _region_count(regions: Sequence[str]) -> str:
    return regions[0] if len(regions) == 1 else f"{len(regions)} regions"


def change_line(change: Change) -> str:
    """Format a change, for example `price: p3dn.24xlarge us-east-1: 31.212 -> 29.5 USD/h (-5.5 %)`."""
    where = f" {change.region}" if change.region else ""
    unit = " USD/h" if change.kind.startswith(("price", "spot")) else " vCPUs" if change.kind == "quota" else ""
    if change.before and change.after:
        percent = "" if change.per_cent is None else f" ({change.per_cent:+} %)"
        values = f"{change.before} -> {change.after}{unit}{percent}"
    else:
        values = f"{change.after}{unit}" if change.after else f"was {change.before}{unit}"
    return f"{change.kind.replace('-', ' ')}: {change.what}{where}: {values}"


def _offered_types(types: object, known: Catalog, region: str) -> list[str]:
    """Return a region's instance types with a known GPU, or the previously known types if the request failed."""
    if isinstance(types, Reading):
        return [name for name, facts in types.rows.items() if name in known.types or facts.gpu in known.gpus]
    return sorted(instance_type.name for instance_type in known.rentable if region in instance_type.zones)


def _rows_for(rows: Mapping[str, Any], names: Collection[str], before: Collection[str]) -> dict[str, Any]:
    """Return the rows for these instance types."""
    listed_rows = {name: row for name, row in rows.items() if name in names}
    if before and not listed_rows:
        message = f"the response lists none of the {len(before)} GPU types known in this region"
        raise CloudError(message, code="Incomplete", hint="run `cloudgpu catalog refresh` again")
    return listed_rows


def _by_region(readings: Mapping[tuple[str, str], Any]) -> dict[str, RegionReadings]:
    parts: dict[str, dict[str, Any]] = {}
    for (region, part), reading in readings.items():
        parts.setdefault(region, {})[part] = reading
    return {region: RegionReadings(**fields) for region, fields in parts.items()}


def _key(item: tuple[tuple[str, str], CloudGpuError]) -> tuple[str, str]:
    return item[0]
