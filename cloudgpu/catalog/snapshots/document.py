"""Convert a snapshot to and from JSON. Prices are stored as text to prevent rounding."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.catalog.snapshots.snapshot import CatalogSnapshot, Reading, RegionReadings, Retirement, TypeFacts

SCHEMA: Final = 1


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
