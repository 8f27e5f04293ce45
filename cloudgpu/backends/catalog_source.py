"""The source from which a catalog refresh reads a target's types, prices, images and quotas."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Protocol

from cloudgpu.catalog.snapshot import TypeFacts
from cloudgpu.state.identifiers import BackendIdentity


class CatalogSource(BackendIdentity, Protocol):
    """Source of a target's catalog data. Every method raises `CloudGpuError` if its request fails."""

    def regions(self) -> Sequence[str]:
        """Return every region that the account can use."""

    def types(self, region: str) -> Mapping[str, TypeFacts]:
        """Return the instance types with NVIDIA GPUs in a region."""

    def zones(self, region: str) -> Mapping[str, tuple[str, ...]]:
        """Return the zones of a region that offer each GPU instance type, by instance type."""

    def on_demand(self, region: str) -> Mapping[str, Decimal]:
        """Return the on-demand price in USD per hour of every instance type in the region's price list."""

    def spot(self, region: str, types: Sequence[str]) -> Mapping[str, tuple[Decimal, Decimal]]:
        """Return the lowest and the highest recent spot price in USD per hour of each instance type."""

    def images(self, region: str, parameters: Sequence[str]) -> Mapping[str, str]:
        """Return the machine image ID stored in each SSM parameter."""

    def quotas(self, region: str) -> Mapping[str, int]:
        """Return the vCPU limit of each quota, by quota key."""
