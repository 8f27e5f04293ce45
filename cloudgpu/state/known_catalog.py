"""This state home's catalog for a target: the bundled data, updated with the active snapshot."""

from cloudgpu.catalog import Catalog, load
from cloudgpu.catalog.snapshots.apply import apply_snapshot
from cloudgpu.paths import Home
from cloudgpu.state.catalog_snapshots import CatalogSnapshots


def known_catalog(home: Home, target: str) -> Catalog:
    """Return the bundled catalog updated with the active snapshot of this target."""
    snapshot = CatalogSnapshots(home, target).current()
    return load() if snapshot is None else apply_snapshot(load(), snapshot)
