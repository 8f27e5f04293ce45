"""Report the sources and age of the catalog data."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.snapshots.snapshot import PARTS, CatalogSnapshot, Retirement
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, SnapshotEntry
from cloudgpu.targets import is_simulated


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
