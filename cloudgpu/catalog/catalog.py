"""The catalog of GPUs and instance types, read from the data files of this package."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import cache

from cloudgpu.catalog import data_files
from cloudgpu.catalog.hardware import Gpu, InstanceType
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.problem import suggestion


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
        {gpu.name: gpu for gpu in data_files.gpus()},
        {instance_type.name: instance_type for instance_type in data_files.instance_types()},
        data_files.regions(),
    )


def _lowest_on_demand_usd(instance_type: InstanceType) -> Decimal:
    return min(instance_type.on_demand_usd.values(), default=Decimal("Infinity"))
