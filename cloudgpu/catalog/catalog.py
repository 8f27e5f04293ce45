"""The catalogue: every GPU and instance type that is known, read from the data files of this package."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory, Rates
from cloudgpu.catalog.images import image_for
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.nearest import suggestion


@dataclass(frozen=True)
class Catalog:
    """Everything known, by name."""

    gpus: Mapping[str, Gpu]
    types: Mapping[str, InstanceType]
    regions: tuple[str, ...]

    def gpu(self, name: str) -> Gpu:
        """A GPU by its model name.

        Raises:
            RecipeError: It is not in the catalogue; the message has the nearest name.
        """
        if name not in self.gpus:
            message = f"unknown GPU {name}{suggestion(name, self.gpus)}"
            raise RecipeError(message, hint=f"known GPUs: {', '.join(self.gpus)}")
        return self.gpus[name]

    def instance_type(self, name: str) -> InstanceType:
        """An instance type by its name.

        Raises:
            RecipeError: It is not in the catalogue; the message has the nearest name.
        """
        if name not in self.types:
            message = f"unknown instance type {name}{suggestion(name, self.types)}"
            raise RecipeError(message, hint=f"known instance types: {', '.join(self.types)}")
        return self.types[name]

    def types_for(self, gpu: str, count: int) -> tuple[InstanceType, ...]:
        """Types with exactly this many of a GPU: those that can be launched first, the cheapest of them first."""
        found = [kind for kind in self.types.values() if (kind.gpu, kind.gpus) == (gpu, count)]
        return tuple(sorted(found, key=lambda kind: (kind.retired, _lowest(kind), kind.name)))


@cache
def load() -> Catalog:
    """The catalogue that travels with this version of cloudgpu."""
    stored = _read("instance_types.json")
    known = _read("gpus.json")
    gpus = {entry["name"]: _gpu(entry, known["sources"]) for entry in known["gpus"]}
    source = stored["sources"]["on_demand_usd"]
    types = {entry["name"]: _instance_type(entry, source) for entry in stored["instance_types"]}
    return Catalog(gpus, types, tuple(stored["regions"]))


def _gpu(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    fields = {
        **entry,
        "memories": tuple(Memory(Decimal(gib), speed, sold) for gib, speed, sold in entry.get("memories", [])),
        "rates": Rates(**{name: Decimal(rate) for name, rate in entry.get("rates", {}).items()}),
        "modules": tuple(entry.get("modules", ("proprietary", "open"))),
        "sources": {**sources, **entry.get("sources", {})},
    }
    if entry.get("nccl_link_gb_s") is not None:
        fields["nccl_link_gb_s"] = Decimal(entry["nccl_link_gb_s"])
    return Gpu(**fields, image=image_for(entry["architecture"]).parameter)


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files("cloudgpu.catalog").joinpath("data", name).read_text("utf-8"))
    return content


def _instance_type(entry: Mapping[str, Any], source: str) -> InstanceType:
    fields = {
        **entry,
        "gpu_memory_gib": Decimal(entry["gpu_memory_gib"]),
        "retired_on": date.fromisoformat(entry["retired_on"]) if entry["retired_on"] else None,
        "priced_on": date.fromisoformat(entry["priced_on"]),
        "zones": {region: tuple(zones) for region, zones in entry["zones"].items()},
        "on_demand_usd": {region: Decimal(usd) for region, usd in entry["on_demand_usd"].items()},
        "spot_usd": {region: (Decimal(low), Decimal(high)) for region, (low, high) in entry["spot_usd"].items()},
        "usage_classes": tuple(entry.get("usage_classes", ("on-demand", "spot"))),
    }
    if entry.get("network_gbps") is not None:
        fields["network_gbps"] = Decimal(entry["network_gbps"])
    return InstanceType(**fields, source=source)


def _lowest(kind: InstanceType) -> Decimal:
    return min(kind.on_demand_usd.values(), default=Decimal("Infinity"))
