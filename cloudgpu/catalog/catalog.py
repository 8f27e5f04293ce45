"""The catalog of GPUs and instance types, read from the data files of this package."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

from cloudgpu.catalog import data_files
from cloudgpu.catalog.hardware import Gpu, InstanceType
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.name_suggestions import suggestion


@dataclass(frozen=True)
class Catalog:
    """All GPUs and instance types by name."""

    gpus: Mapping[str, Gpu]
    types: Mapping[str, InstanceType]
    regions: tuple[str, ...]

    def gpu(self, name: str) -> Gpu:
        """Return a GPU by its model name.

        Raises:
            RecipeError: The GPU is not in the catalog; the message suggests the nearest name.
        """
        if name not in self.gpus:
            message = f"unknown GPU {name}{suggestion(name, self.gpus)}"
            raise RecipeError(message, hint=f"known GPUs: {', '.join(self.gpus)}")
        return self.gpus[name]

    def instance_type(self, name: str) -> InstanceType:
        """Return an instance type by its name.

        Raises:
            RecipeError: The type is not in the catalog; the message suggests the nearest name.
        """
        if name not in self.types:
            message = f"unknown instance type {name}{suggestion(name, self.types)}"
            raise RecipeError(message, hint=f"known instance types: {', '.join(self.types)}")
        return self.types[name]

    @property
    def rentable(self) -> tuple[InstanceType, ...]:
        """Instance types that AWS offers or used to offer, without types that only describe self-managed machines."""
        return tuple(kind for kind in self.types.values() if kind.provider == "aws")

    def types_for(self, gpu: str, count: int, memory_gib: Decimal | None = None) -> tuple[InstanceType, ...]:
        """Return AWS instance types with exactly this many of a GPU, available ones first, then by price.

        `memory_gib` is the memory of each GPU in the catalog; None for any.
        """
        found = [kind for kind in self.rentable if (kind.gpu, kind.gpus) == (gpu, count)]
        fitting = [kind for kind in found if memory_gib in (None, kind.gpu_memory_gib)]
        return tuple(sorted(fitting, key=lambda kind: (kind.retired, _lowest(kind), kind.name)))


@cache
def load() -> Catalog:
    """Return the catalog bundled with this version of cloudgpu."""
    return Catalog(
        {gpu.name: gpu for gpu in data_files.gpus()},
        {kind.name: kind for kind in data_files.instance_types()},
        data_files.regions(),
    )


def _lowest(kind: InstanceType) -> Decimal:
    return min(kind.on_demand_usd.values(), default=Decimal("Infinity"))
