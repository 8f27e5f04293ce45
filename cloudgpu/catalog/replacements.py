"""Find replacements for a GPU that have at least the same memory: the cheapest GPU, and the nearest newer GPU."""

from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.ranking import Offer, SearchCriteria, rank_offers


@dataclass(frozen=True)
class Replacement:
    """The replacements for one memory size of a GPU. A field is None if no suitable offer has a known price."""

    gib: Decimal
    cheapest: Offer | None
    """Offer with the lowest price per GPU among other GPU models with at least this much memory per GPU."""
    newer: Offer | None
    """Offer with the least sufficient memory per GPU among models with a higher compute capability."""


def replacements(catalog: Catalog, gpu: Gpu, *, home_region: str) -> tuple[Replacement, ...]:
    """Return the replacements for every memory size of a GPU, smallest size first."""
    types = [instance_type for instance_type in catalog.types.values() if instance_type.gpu == gpu.name]
    sizes = sorted({instance_type.gpu_memory_gib for instance_type in types})
    return tuple(
        _replacement(catalog, gpu, gib, home_region) for gib in sizes or [memory.gib for memory in gpu.memories]
    )


def _replacement(catalog: Catalog, gpu: Gpu, gib: Decimal, home_region: str) -> Replacement:
    matches = rank_offers(catalog, SearchCriteria(min_memory_gib=gib), "usd-per-hour", home_region=home_region)
    others = [offer for offer in matches.offers if offer.gpu.name != gpu.name and offer.hourly_usd is not None]
    newer = [offer for offer in others if offer.gpu.sm > gpu.sm]
    return Replacement(
        gib,
        min(others, key=_price, default=None),
        min(newer, key=lambda offer: (offer.kind.gpu_memory_gib, *_price(offer)), default=None),
    )


def _price(offer: Offer) -> tuple[Decimal, Decimal, str]:
    """Return the sort key: price per GPU, then price of the instance, then name."""
    hourly = offer.hourly_usd or Decimal(0)
    return hourly / offer.kind.gpus, hourly, offer.kind.name
