"""Where the catalogue's figures come from, and how old they are."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.overlay import PARTS, Overlay, Retirement
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, Entry


@dataclass(frozen=True)
class Known:
    """What one source told of one region."""

    region: str
    part: str
    rows: int
    at: datetime
    source: str


@dataclass(frozen=True)
class Knowledge:
    """What is known for one target.

    Attributes:
        entry: The refresh that holds; None where the catalogue is as it came with cloudgpu.
        shipped_priced_on: The oldest and the newest day on which shipped prices of AWS's types were read.
        sources: Where the shipped prices come from, each once.
    """

    target: str
    entry: Entry | None
    known: tuple[Known, ...]
    retired: dict[str, Retirement]
    shipped_priced_on: tuple[date, date]
    shipped_types: int
    sources: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether what was read are the rehearsal cloud's figures."""
        return self.target == "rehearsal"


def knowledge(overlays: CatalogSnapshots, target: str, shipped: Catalog, region: str = "") -> Knowledge:
    """What is known, of one region or of all that were read.

    Raises:
        StateError: The overlay is damaged.
    """
    history = overlays.history()
    overlay = overlays.current()
    priced = [kind for kind in shipped.rentable if kind.on_demand_usd]
    days = sorted({kind.priced_on for kind in priced})
    return Knowledge(
        target=target,
        entry=history.entry(history.current),
        known=tuple(_known(overlay, region)) if overlay else (),
        retired=dict(overlay.retired) if overlay else {},
        shipped_priced_on=(days[0], days[-1]),
        shipped_types=len(shipped.rentable),
        sources=tuple(dict.fromkeys(kind.source for kind in priced)),
    )


def _known(overlay: Overlay, region: str) -> Iterator[Known]:
    for name, one in sorted(overlay.regions.items()):
        for part in PARTS if region in ("", name) else ():
            reading = getattr(one, part)
            if reading is not None:
                yield Known(name, part, len(reading.rows), reading.at, reading.source)
