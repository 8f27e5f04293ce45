"""Types, zones, prices, images and quotas as a cloud reported them, kept apart from the bundled catalog.

A snapshot belongs to one target and account. For every region it has one dated reading per source. A source that could
not be read keeps its older reading, or has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from cloudgpu.catalog.catalog import Catalog

T = TypeVar("T")


@dataclass(frozen=True)
class TypeFacts:
    """An instance type with whole NVIDIA GPUs, as EC2 describes it."""

    gpu: str
    gpus: int
    gpu_memory_gib: Decimal
    """Of each GPU."""
    vcpus: int
    memory_gib: int
    efa_interfaces: int
    network_cards: int
    network: str
    """In EC2's own words, for example `Up to 10 Gigabit`."""
    usage_classes: tuple[str, ...]
    nvme_disks: int
    nvme_gb: int
    """Of each local disk, in GB (1e9 bytes)."""
    current: bool
    """Whether EC2 counts it among its current generation."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A complete reading of one source in one region: what is not in it does not exist."""

    at: datetime
    """When it was asked, UTC."""
    source: str
    """The call that told it, for example `EC2 DescribeInstanceTypes`."""
    rows: Mapping[str, T]


@dataclass(frozen=True)
class RegionReadings:
    """The readings of one region; None for sources that were never read there."""

    types: Reading[TypeFacts] | None = None
    """Instance type -> what it is."""
    zones: Reading[tuple[str, ...]] | None = None
    """Instance type -> zones that offer it, by the account's names."""
    on_demand: Reading[Decimal] | None = None
    """Instance type -> USD an hour."""
    spot: Reading[tuple[Decimal, Decimal]] | None = None
    """Instance type -> lowest and highest USD an hour of the last day."""
    images: Reading[str] | None = None
    """SSM parameter -> machine image."""
    quotas: Reading[int] | None = None
    """Quota code -> vCPUs that may run."""


PARTS: Final = tuple(spec.name for spec in fields(RegionReadings))
"""Sources of figures, in the order in which they are shown."""
_OF_ACCOUNT: Final = ("zones", "quotas")
"""Zone names and quotas differ from account to account."""


@dataclass(frozen=True)
class Retirement:
    """Since when a type is missing in all regions that sold it, and how that is known."""

    on: date
    source: str


@dataclass(frozen=True)
class Overlay:
    """Everything that one target reported to one account.

    Attributes:
        endpoint: Distinguishes endpoints of the target; empty for AWS.
    """

    target: str
    account: str
    endpoint: str
    regions: Mapping[str, RegionReadings] = field(default_factory=dict)
    retired: Mapping[str, Retirement] = field(default_factory=dict)


def merged(old: Overlay | None, new: Overlay, catalog: Catalog, today: date) -> Overlay:
    """Merge readings, newest first per source, and derive retired types from the result.

    Readings of another endpoint are dropped, as are those that only another account could see.
    """
    if old is None or (old.target, old.endpoint) != (new.target, new.endpoint):
        kept: Mapping[str, RegionReadings] = {}
        gone: Mapping[str, Retirement] = {}
    else:
        kept, gone = old.regions, old.retired
        if old.account != new.account:
            kept = {region: replace(readings, **dict.fromkeys(_OF_ACCOUNT)) for region, readings in kept.items()}
    names = sorted({*kept, *new.regions})
    regions = {name: _newer(kept.get(name), new.regions.get(name)) for name in names}
    return replace(new, regions=regions, retired=_retired(catalog, regions, gone, today))


def _newer(old: RegionReadings | None, new: RegionReadings | None) -> RegionReadings:
    old, new = old or RegionReadings(), new or RegionReadings()
    chosen: dict[str, Any] = {}
    for part in PARTS:
        before, after = getattr(old, part), getattr(new, part)
        chosen[part] = before if after is None or (before is not None and before.at > after.at) else after
    return RegionReadings(**chosen)


def _retired(
    catalog: Catalog, regions: Mapping[str, RegionReadings], known: Mapping[str, Retirement], today: date
) -> dict[str, Retirement]:
    """Return types that EC2 describes in none of the regions that sell them, once all of these were read."""
    found = {}
    for kind in catalog.rentable:
        if kind.retired or not kind.zones:
            continue
        read = [
            readings.types
            for name in kind.zones
            if (readings := regions.get(name)) is not None and readings.types is not None
        ]
        described = any(kind.name in readings.types.rows for readings in regions.values() if readings.types is not None)
        if len(read) == len(kind.zones) and not described:
            where = ", ".join(sorted(kind.zones))
            told = Retirement(today, f"EC2 DescribeInstanceTypes no longer has it in {where} (read {today})")
            found[kind.name] = known.get(kind.name, told)
    return found
