"""Replacements for a GPU: the cheapest with as much memory, and the nearest newer one. Pure."""

from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.ranking import Offer, SearchCriteria, ranked


@dataclass(frozen=True)
class Replacement:
    """Replacements for one memory size of a GPU; None if nothing is available at a known price."""

    gib: Decimal
    cheapest: Offer | None
    """Of all other GPUs with at least this memory each: the lowest price for one GPU."""
    newer: Offer | None
    """Of newer ones: the one with the least memory that is enough, at its lowest price for one GPU."""


def replacements(catalog: Catalog, gpu: Gpu, *, home_region: str) -> tuple[Replacement, ...]:
    """Return replacements for every memory size of a GPU, smallest first."""
    sizes = sorted({kind.gpu_memory_gib for kind in catalog.types.values() if kind.gpu == gpu.name})
    return tuple(
        _replacement(catalog, gpu, gib, home_region) for gib in sizes or [memory.gib for memory in gpu.memories]
    )


def _replacement(catalog: Catalog, gpu: Gpu, gib: Decimal, home_region: str) -> Replacement:
    found = ranked(catalog, SearchCriteria(min_memory_gib=gib), "usd-per-hour", home_region=home_region)
    others = [offer for offer in found.offers if offer.gpu.name != gpu.name and offer.hourly_usd is not None]
    newer = [offer for offer in others if offer.gpu.sm > gpu.sm]
    return Replacement(
        gib,
        min(others, key=_price, default=None),
        min(newer, key=lambda offer: (offer.kind.gpu_memory_gib, *_price(offer)), default=None),
    )


def _price(offer: Offer) -> tuple[Decimal, Decimal, str]:
    """Return the sort key: price per GPU, then the size of the instance."""
    hourly = offer.hourly_usd or Decimal(0)
    return hourly / offer.kind.gpus, hourly, offer.kind.name
