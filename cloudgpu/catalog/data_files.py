"""Read the data files of the catalog. Values that many rows share are stored once and merged into each row."""

import json
from collections.abc import Iterator, Mapping
from datetime import date
from decimal import Decimal
from importlib.resources import files
from typing import Any, Final

from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory, PeakRates
from cloudgpu.catalog.images import image_for

TYPE_FILES: Final = ("instance_types.json", "retired_types.json", "machines.json")
"""Files of types that EC2 describes, types that EC2 no longer describes, and machines outside EC2.

`scripts/catalogue_types.py` writes the first file.
"""
_NO_PRICES: Final = "no prices are known"


def gpus() -> Iterator[Gpu]:
    """Yield every GPU in the data files."""
    stored = read("gpus.json")
    for entry in stored["gpus"]:
        yield _gpu(entry, stored["sources"])


def instance_types() -> Iterator[InstanceType]:
    """Yield every instance type with its zones and prices."""
    offers, observed, regional = read("offers.json"), read("observed_prices.json"), read("regional_prices.json")
    offered = {row["name"]: row for row in offers["offers"]}
    for name in TYPE_FILES:
        stored = read(name)
        priced_on = date.fromisoformat(stored.get("read_on", offers["priced_on"]))
        for entry in stored["instance_types"]:
            prices = _prices(entry["name"], offered, offers["sources"], observed, regional)
            merged = {
                **entry,
                **prices,
                "sources": {**stored["sources"], **prices["sources"], **entry.get("sources", {})},
            }
            yield _instance_type(merged, priced_on)


def regions() -> tuple[str, ...]:
    """Return every region with known offers."""
    return tuple(read("offers.json")["regions"])


def read(name: str) -> dict[str, Any]:
    """Read one data file."""
    content: dict[str, Any] = json.loads(files("cloudgpu.catalog").joinpath("data", name).read_text("utf-8"))
    return content


def _gpu(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    fields = {
        **entry,
        "memories": tuple(Memory(Decimal(gib), speed, sold) for gib, speed, sold in entry["memories"]),
        "rates": PeakRates(**{name: Decimal(rate) for name, rate in entry["rates"].items()}),
        "modules": tuple(entry["modules"]),
        "nccl_link_gb_s": _decimal(entry["nccl_link_gb_s"]),
        "sources": {**sources, **entry.get("sources", {})},
    }
    return Gpu(**fields, image=image_for(entry["architecture"]).parameter)


def _prices(
    name: str,
    offered: Mapping[str, Any],
    sources: Mapping[str, str],
    observed: Mapping[str, Any],
    regional: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the zones and prices of a type.

    The price list takes precedence over observed prices, and these over the prices of all regions, which are older.
    """
    row = offered.get(name)
    if row is None:
        return {"zones": {}, "on_demand_usd": {}, "spot_usd": {}, "capacity_block_usd": {}, "sources": {}}
    merged_sources = dict(sources)
    for field in ("on_demand_usd", "spot_usd", "capacity_block_usd"):
        if name in observed[field]:
            merged_sources[field] = "; ".join(filter(None, (sources.get(field), observed["sources"][field])))
    newer = {**observed["on_demand_usd"].get(name, {}), **row["on_demand_usd"]}
    older = {region: usd for region, usd in regional["on_demand_usd"].get(name, {}).items() if region not in newer}
    if older:
        dated = f"{regional['source']}, read on {regional['read_on']}"
        merged_sources["on_demand_usd"] = "; ".join(filter(None, (merged_sources.get("on_demand_usd"), dated)))
    return {
        "zones": row["zones"],
        "on_demand_usd": {**older, **newer},
        "rates_read_on": dict.fromkeys(older, date.fromisoformat(regional["read_on"])),
        "spot_usd": observed["spot_usd"].get(name, {}),
        "capacity_block_usd": observed["capacity_block_usd"].get(name, {}),
        "sources": merged_sources,
    }


def _instance_type(entry: Mapping[str, Any], priced_on: date) -> InstanceType:
    retired_on = entry.get("retired_on")
    fields: dict[str, Any] = {
        "efa_interfaces": 0,
        "network_cards": 1,
        "gpudirect_rdma": False,
        "lifecycle": "active",
        "replacement": None,
        **entry,
        "gpu_memory_gib": Decimal(entry["gpu_memory_gib"]),
        "retired_on": date.fromisoformat(retired_on) if retired_on else None,
        "zones": {region: tuple(region + letter for letter in zones) for region, zones in entry["zones"].items()},
        "on_demand_usd": _money(entry["on_demand_usd"]),
        "capacity_block_usd": _money(entry["capacity_block_usd"]),
        "spot_usd": {region: (Decimal(low), Decimal(high)) for region, (low, high) in entry["spot_usd"].items()},
        "usage_classes": tuple(entry.get("usage_classes", ("on-demand", "spot"))),
        "network_gbps": _decimal(entry.get("network_gbps")),
    }
    source = entry["sources"].get("on_demand_usd", entry["sources"].get("prices", _NO_PRICES))
    return InstanceType(**fields, priced_on=priced_on, source=source)


def _money(usd: Mapping[str, str]) -> dict[str, Decimal]:
    return {region: Decimal(text) for region, text in usd.items()}


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
