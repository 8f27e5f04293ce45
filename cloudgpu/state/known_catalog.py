"""The catalogue as this home knows it for a target: what came with cloudgpu, and what was read since."""

from cloudgpu.catalog import Catalog, load
from cloudgpu.catalog.overlay_apply import apply
from cloudgpu.paths import Home
from cloudgpu.state.catalog_snapshots import CatalogSnapshots


def known_catalog(home: Home, target: str) -> Catalog:
    """The shipped catalogue with the overlay of this target that holds; one of another target is never looked at.

    Raises:
        StateError: The overlay is damaged; the hint says how to go on with the shipped catalogue.
    """
    overlay = CatalogSnapshots(home, target).current()
    return load() if overlay is None else apply(load(), overlay)
