"""Instance types, zones, prices, images and quotas as a cloud reported them, and their JSON form.

A snapshot belongs to one target and account. For every region, it contains at most one dated reading of each
source. If a source cannot be read during a refresh, its previous reading is kept.

Prices are stored as text to prevent rounding.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar

from cloudgpu import bounds
from cloudgpu.catalog.catalog import Catalog

T = TypeVar("T")
_OF_ACCOUNT: Final = ("zones", "quotas")
"""Fields that depend on the account: zone names and quotas differ between accounts."""
SCHEMA: Final = 1


@dataclass(frozen=True)
class TypeFacts:
    """An instance type with whole NVIDIA GPUs, as EC2 describes it."""

    gpu: str
    gpus: int
    gpu_memory_gib: Decimal
    """Memory of each GPU."""
    vcpus: int
    memory_gib: int
    efa_interfaces: int
    network_cards: int
    network: str
    """Network performance as EC2 reports it, for example `Up to 10 Gigabit`."""
    usage_classes: tuple[str, ...]
    nvme_disks: int
    nvme_gb: int
    """Size of each local disk, in GB (1e9 bytes)."""
    current: bool
    """Whether EC2 lists the type as current generation."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A complete reading of one source in one region. A name that is missing from `rows` is not available there."""

    at: datetime
    """Time of the API call, in UTC."""
    source: str
    """API call that returned the rows, for example `EC2 DescribeInstanceTypes`."""
    rows: Mapping[str, T]


@dataclass(frozen=True)
class RegionReadings:
    """The readings of one region; None for a source that was never read there."""

    types: Reading[TypeFacts] | None = None
    """Instance type -> its hardware and usage classes."""
    zones: Reading[tuple[str, ...]] | None = None
    """Instance type -> availability zones that offer it, by the account's zone names."""
    on_demand: Reading[Decimal] | None = None
    """Instance type -> USD per hour."""
    spot: Reading[tuple[Decimal, Decimal]] | None = None
    """Instance type -> lowest and highest USD per hour of the last day."""
    images: Reading[str] | None = None
    """SSM parameter -> machine image ID."""
    quotas: Reading[int] | None = None
    """`Quota.key` -> limit in vCPUs."""


PARTS: Final = tuple(spec.name for spec in fields(RegionReadings))
"""Names of the fields of `RegionReadings`, in display order."""


@dataclass(frozen=True)
class Retirement:
    """The retirement of an instance type: the date of the refresh that first found it in no region, and the source."""

    on: date
    source: str


@dataclass(frozen=True)
class CatalogSnapshot:
    """A catalog snapshot: everything that one target reported to one account.

    Attributes:
        endpoint: ID that distinguishes rehearsal clouds, which share an account ID; empty for AWS.
    """

    target: str
    account: str
    endpoint: str
    regions: Mapping[str, RegionReadings] = field(default_factory=dict)
    retired: Mapping[str, Retirement] = field(default_factory=dict)


def merge_snapshots(
    old: CatalogSnapshot | None, new: CatalogSnapshot, catalog: Catalog, today: date
) -> CatalogSnapshot:
    """Merge two snapshots, keep the newest reading of each source, and derive the retired types from the result.

    Old readings from another target or endpoint are dropped, as are zones and quotas of another account.
    """
    if old is None or (old.target, old.endpoint) != (new.target, new.endpoint):
        kept: Mapping[str, RegionReadings] = {}
        retired: Mapping[str, Retirement] = {}
    else:
        kept, retired = old.regions, old.retired
        if old.account != new.account:
            kept = {region: replace(readings, **dict.fromkeys(_OF_ACCOUNT)) for region, readings in kept.items()}
    names = sorted({*kept, *new.regions})
    regions = {name: _newer(kept.get(name), new.regions.get(name)) for name in names}
    return replace(new, regions=regions, retired=_retired(catalog, regions, retired, today))


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
    """Return the types that EC2 describes in no region, provided that every region that offered them was read."""
    retired = {}
    for instance_type in catalog.rentable:
        if instance_type.retired or not instance_type.zones:
            continue
        read = [
            readings.types
            for name in instance_type.zones
            if (readings := regions.get(name)) is not None and readings.types is not None
        ]
        described = any(
            instance_type.name in readings.types.rows for readings in regions.values() if readings.types is not None
        )
        if len(read) == len(instance_type.zones) and not described:
            where = ", ".join(sorted(instance_type.zones))
            retirement = Retirement(today, f"EC2 DescribeInstanceTypes no longer lists it in {where} (read {today})")
            retired[instance_type.name] = known.get(instance_type.name, retirement)
    return retired


def to_document(snapshot: CatalogSnapshot) -> dict[str, Any]:
    """Return a snapshot as a JSON document."""
    return {
        "schema": SCHEMA,
        "target": snapshot.target,
        "account": snapshot.account,
        "endpoint": snapshot.endpoint,
        "regions": {name: _region(readings) for name, readings in sorted(snapshot.regions.items())},
        "retired": {
            name: {"on": retirement.on.isoformat(), "source": retirement.source}
            for name, retirement in sorted(snapshot.retired.items())
        },
    }


def parse_snapshot(stored: Any) -> CatalogSnapshot:  # noqa: ANN401 - JSON of unknown shape
    """Parse a snapshot from its JSON document."""
    try:
        return _snapshot(stored)
    except KeyError as err:
        message = f"the field {err} is missing"
        raise ValueError(message) from err
    except (TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as err:
        message = f"a field has an invalid value: {err}"
        raise ValueError(message) from err


def _snapshot(stored: Any) -> CatalogSnapshot:  # noqa: ANN401
    if bounds.checked_count(stored["schema"]) != SCHEMA:
        message = f"the schema is {stored['schema']!r}, but this version of cloudgpu reads schema {SCHEMA}"
        raise ValueError(message)
    return CatalogSnapshot(
        target=_text(stored["target"]),
        account=_text(stored["account"]),
        endpoint=_text(stored["endpoint"]),
        regions={name: _readings(readings) for name, readings in stored["regions"].items()},
        retired={
            name: Retirement(bounds.parse_date(retirement["on"]), _text(retirement["source"]))
            for name, retirement in stored["retired"].items()
        },
    )


def _facts(row: Mapping[str, Any]) -> TypeFacts:
    counts = {
        name: _count(row[name])
        for name in ("gpus", "vcpus", "memory_gib", "efa_interfaces", "network_cards", "nvme_disks", "nvme_gb")
    }
    return TypeFacts(
        gpu=_text(row["gpu"]),
        gpu_memory_gib=_money(row["gpu_memory_gib"]),
        network=_text(row["network"]),
        usage_classes=tuple(_text(usage_class) for usage_class in row["usage_classes"]),
        current=_truth(row["current"]),
        **counts,
    )


def _money(text: Any) -> Decimal:  # noqa: ANN401
    """Parse a positive amount. Zero, negative and malformed amounts are rejected: they indicate a damaged document."""
    try:
        return bounds.positive_usd(_text(text))
    except ValueError:
        message = f"{text!r} is not a positive number"
        raise ValueError(message) from None


def _span(pair: Any) -> tuple[Decimal, Decimal]:  # noqa: ANN401
    low, high = (_money(amount) for amount in pair)
    if low > high:
        message = f"the range {low} to {high} is reversed"
        raise ValueError(message)
    return low, high


def _count(value: Any) -> int:  # noqa: ANN401
    try:
        return bounds.checked_count(value)
    except ValueError:
        message = f"{value!r} is not a count"
        raise ValueError(message) from None


def _truth(value: Any) -> bool:  # noqa: ANN401
    if not isinstance(value, bool):
        message = f"{value!r} is not true or false"
        raise TypeError(message)
    return value


def _text(value: Any) -> str:  # noqa: ANN401
    if not isinstance(value, str):
        message = f"{value!r} is not text"
        raise TypeError(message)
    return value


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "types": _facts,
    "zones": lambda row: tuple(_text(zone) for zone in row),
    "on_demand": _money,
    "spot": _span,
    "images": _text,
    "quotas": _count,
}
_WRITE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "types": lambda facts: {**vars(facts), "gpu_memory_gib": str(facts.gpu_memory_gib)},
    "zones": list,
    "on_demand": str,
    "spot": lambda pair: [str(amount) for amount in pair],
    "images": str,
    "quotas": int,
}


def _region(readings: RegionReadings) -> dict[str, Any]:
    parts = {}
    for part, write in _WRITE.items():
        reading: Reading[Any] | None = getattr(readings, part)
        if reading is not None:
            rows = {name: write(row) for name, row in sorted(reading.rows.items())}
            parts[part] = {"at": reading.at.isoformat(), "source": reading.source, "rows": rows}
    return parts


def _readings(stored: Mapping[str, Any]) -> RegionReadings:
    parts: dict[str, Any] = {}
    for part, read in _READ.items():
        if part in stored:
            reading = stored[part]
            rows = {name: read(row) for name, row in reading["rows"].items()}
            if not re.search(r"(?:Z|[+-][0-9:]{5})$", _text(reading["at"])):
                message = f"{reading['at']!r} has no time zone"
                raise ValueError(message)
            parts[part] = Reading(bounds.parse_time(reading["at"]), _text(reading["source"]), rows)
    return RegionReadings(**parts)
