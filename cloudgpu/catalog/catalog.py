"""The catalog of GPUs, instance types, machine images and drivers, read from the data files of this package.

Values that many rows of a file share are stored once and merged into each row.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, Final

from cloudgpu.catalog.hardware import Flavour, Gpu, InstanceType, Memory, PeakRates
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.problem import suggestion

TYPE_FILES: Final = ("instance_types.json", "retired_types.json", "machines.json")
"""Files of types that EC2 describes, types that EC2 no longer describes, and machines outside EC2.

`scripts/catalogue_types.py` writes the first file.
"""
_NO_PRICES: Final = "no prices are known"


@dataclass(frozen=True)
class Catalog:
    """All GPUs and instance types by name."""

    gpus: Mapping[str, Gpu]
    types: Mapping[str, InstanceType]
    regions: tuple[str, ...]

    def gpu(self, name: str) -> Gpu:
        """Return a GPU by its model name."""
        if name not in self.gpus:
            message = f"unknown GPU {name}{suggestion(name, self.gpus)}"
            raise RecipeError(message, hint=f"known GPUs: {', '.join(self.gpus)}")
        return self.gpus[name]

    def instance_type(self, name: str) -> InstanceType:
        """Return an instance type by its name."""
        if name not in self.types:
            message = f"unknown instance type {name}{suggestion(name, self.types)}"
            raise RecipeError(message, hint=f"known instance types: {', '.join(self.types)}")
        return self.types[name]

    def with_prices(self, prices: Mapping[tuple[str, str], Decimal], read_on: date) -> "Catalog":
        """Return the catalog with on-demand prices in USD per hour, by instance type and region, that it lacks."""
        types = dict(self.types)
        for (name, region), usd in prices.items():
            instance_type = types[name]
            types[name] = replace(
                instance_type,
                on_demand_usd={**instance_type.on_demand_usd, region: usd},
                rates_read_on={**instance_type.rates_read_on, region: read_on},
            )
        return replace(self, types=types)

    @property
    def rentable(self) -> tuple[InstanceType, ...]:
        """Instance types that AWS offers or used to offer, without Alibaba Cloud types and self-managed machines."""
        return tuple(instance_type for instance_type in self.types.values() if instance_type.provider == "aws")

    def types_for(self, gpu: str, count: int, memory_gib: Decimal | None = None) -> tuple[InstanceType, ...]:
        """Return the AWS instance types with exactly `count` GPUs of a model.

        Types that AWS still offers come before retired types; both groups are sorted by lowest on-demand price.
        `memory_gib` is the memory of each GPU as in the catalog; None matches every size.
        """
        with_gpus = [
            instance_type for instance_type in self.rentable if (instance_type.gpu, instance_type.gpus) == (gpu, count)
        ]
        fitting = [instance_type for instance_type in with_gpus if memory_gib in (None, instance_type.gpu_memory_gib)]
        return tuple(
            sorted(
                fitting,
                key=lambda instance_type: (
                    instance_type.retired,
                    _lowest_on_demand_usd(instance_type),
                    instance_type.name,
                ),
            )
        )


@cache
def load() -> Catalog:
    """Return the catalog bundled with this version of cloudgpu."""
    return Catalog(
        {gpu.name: gpu for gpu in read_gpus()},
        {instance_type.name: instance_type for instance_type in read_instance_types()},
        read_regions(),
    )


def _lowest_on_demand_usd(instance_type: InstanceType) -> Decimal:
    return min(instance_type.on_demand_usd.values(), default=Decimal("Infinity"))


def read_gpus() -> Iterator[Gpu]:
    """Yield every GPU in the data files."""
    stored = read_data_file("gpus.json")
    for entry in stored["gpus"]:
        yield _parse_gpu(entry, stored["sources"])


def read_instance_types() -> Iterator[InstanceType]:
    """Yield every instance type with its zones and prices."""
    offers, observed, regional = (
        read_data_file("offers.json"),
        read_data_file("observed_prices.json"),
        read_data_file("regional_prices.json"),
    )
    offered = {row["name"]: row for row in offers["offers"]}
    for name in TYPE_FILES:
        stored = read_data_file(name)
        priced_on = date.fromisoformat(stored.get("read_on", offers["priced_on"]))
        for entry in stored["instance_types"]:
            prices = _parse_prices(entry["name"], offered, offers["sources"], observed, regional)
            merged = {
                **entry,
                **prices,
                "sources": {**stored["sources"], **prices["sources"], **entry.get("sources", {})},
            }
            yield _parse_instance_type(merged, priced_on)


def read_regions() -> tuple[str, ...]:
    """Return every region with known offers."""
    return tuple(read_data_file("offers.json")["regions"])


def read_data_file(name: str) -> dict[str, Any]:
    """Read one data file."""
    content: dict[str, Any] = json.loads(files("cloudgpu.catalog").joinpath("data", name).read_text("utf-8"))
    return content


_content = cache(read_data_file)


def _parse_gpu(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    fields = {
        **entry,
        "memories": tuple(Memory(Decimal(gib), speed, sold) for gib, speed, sold in entry["memories"]),
        "rates": PeakRates(**{name: Decimal(rate) for name, rate in entry["rates"].items()}),
        "modules": tuple(entry["modules"]),
        "nccl_link_gb_s": _decimal(entry["nccl_link_gb_s"]),
        "sources": {**sources, **entry.get("sources", {})},
    }
    return Gpu(**fields, image=image_for(entry["architecture"]).parameter)


def _parse_prices(
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


def _parse_instance_type(entry: Mapping[str, Any], priced_on: date) -> InstanceType:
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


def unpacked_gib(image: str) -> int | None:
    """Return the approximate disk usage of an unpacked image in GiB, or None if the repository is unknown."""
    repository = image.partition("@")[0].rpartition(":")[0] or image
    size = _content("image_sizes.json")["repositories"].get(repository)
    return None if size is None else int(size)


@dataclass(frozen=True)
class Driver:
    """A branch of the NVIDIA driver and the variant of its kernel modules."""

    branch: int
    flavour: Flavour


@dataclass(frozen=True)
class CarriedDriver:
    """The driver that a machine image contains. A field is None if its value is unknown."""

    branch: int | None
    flavour: Flavour | None


@dataclass(frozen=True)
class MachineImage:
    """A machine image, identified by the public SSM parameter that resolves to its latest version in each region."""

    name: str
    parameter: str


def image_for(architecture: str) -> MachineImage:
    """Return the image for a GPU architecture: a Deep Learning AMI or, if none supports it, plain Ubuntu."""
    name = str(_entry(architecture)["image"])
    return MachineImage(name, _content("images.json")["images"][name])


def bare_image() -> MachineImage:
    """Return the machine image without a driver, for recipes that specify a driver."""
    name = str(_content("images.json")["bare"])
    return MachineImage(name, _content("images.json")["images"][name])


def driver_for(architecture: str, branch: int | None = None) -> Driver:
    """Return the driver to install on an image without one: the requested branch, or the architecture's default."""
    entry = _entry(architecture)
    return Driver(branch or int(entry["driver_branch"]), entry["driver_flavour"])


def carried_driver(image: str) -> CarriedDriver | None:
    """Return the driver in the machine image with this SSM parameter, or None if the image has no driver.

    For an AMI ID or an unknown parameter, both fields of the result are None.
    """
    carried = next((driver for driver in _content("images.json")["carried"] if driver["in_parameter"] in image), None)
    if carried is not None:
        return CarriedDriver(carried["driver_branch"], carried["driver_flavour"])
    return None if _content("images.json")["bare_in_parameter"] in image else CarriedDriver(None, None)


def _entry(architecture: str) -> Mapping[str, Any]:
    known: dict[str, Mapping[str, Any]] = {
        str(entry["name"]): entry for entry in _content("images.json")["architectures"]
    }
    if architecture not in known:
        message = f"no machine image is known for GPU architecture {architecture}"
        raise RecipeError(message, hint=f"set resources.image; known architectures: {', '.join(known)}")
    return known[architecture]
