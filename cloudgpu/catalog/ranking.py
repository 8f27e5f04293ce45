"""Rank the instance types that match search criteria, and find replacements for a GPU with at least the same memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final, Literal

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.gpu_spec import format_gpu_spec
from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory

Sort = Literal["usd-per-hour", "memory", "bandwidth", "fp16", "usd-per-pflop-h", "usd-per-tb-s"]
Market = Literal["on-demand", "spot"]

_THOUSAND: Final = Decimal(1000)
_CENT: Final = Decimal("0.01")
"""Prices of regions are compared in whole cents, because price lists round the same price differently."""
_NEARLY: Final = Decimal("0.9")
"""Fraction of the requested memory that suffices for a near match: a GPU sold as 24 GB may have 22.35 GiB."""


@dataclass(frozen=True)
class SearchCriteria:
    """Search criteria; the defaults match every type that AWS offers."""

    min_memory_gib: Decimal = Decimal(0)
    """Minimum memory of each GPU."""
    min_total_memory_gib: Decimal = Decimal(0)
    """Minimum total GPU memory of an instance."""
    architecture: str = ""
    count: int | None = None
    """Exact number of GPUs per instance; None matches any number."""
    region: str = ""
    """Region that must offer the type; empty for the cheapest region of each type."""
    market: Market = "on-demand"
    everything: bool = False
    """Whether to include retired types and machines outside AWS."""


@dataclass(frozen=True)
class Offer:
    """An instance type at one price, for comparison. None means unknown.

    Rates and bandwidth are theoretical peaks, summed over the instance's GPUs.
    """

    kind: InstanceType
    gpu: Gpu
    region: str | None
    hourly_usd: Decimal | None
    """USD per hour. For spot, the highest observed price, which plans use too."""
    lowest_usd: Decimal | None = None
    """Lowest observed spot price in USD per hour; None for on-demand."""
    priced_on: date | None = None

    @property
    def obtainable(self) -> bool:
        """Whether AWS still offers the type."""
        return self.kind.provider == "aws" and not self.kind.retired

    @property
    def spec(self) -> str:
        """GPU spec for a recipe: `T4:1`, or `V100-32GB:8` if the GPU has several memory sizes."""
        memory = memory_of(self.gpu, self.kind)
        return format_gpu_spec(self.gpu, self.kind.gpus, None if memory is None else memory.gib)

    @property
    def block_usd(self) -> Decimal | None:
        """USD per hour in a Capacity Block in the same region, paid in advance; None if no price is known."""
        return self.kind.capacity_block_usd.get(self.region or "")

    @property
    def bandwidth_tb_s(self) -> Decimal | None:
        """Memory bandwidth in TB (1e12 bytes) per second."""
        memory = memory_of(self.gpu, self.kind)
        if memory is None or memory.bandwidth_gb_s is None:
            return None
        return self.kind.gpus * Decimal(memory.bandwidth_gb_s) / _THOUSAND

    @property
    def fp16_pflop_s(self) -> Decimal | None:
        """FP16 rate, with tensor cores if present, in 1e15 operations per second."""
        rate = self.gpu.rates.fp16
        return None if rate is None else self.kind.gpus * rate / _THOUSAND

    @property
    def usd_per_gpu_h(self) -> Decimal | None:
        """USD per GPU-hour."""
        return None if self.hourly_usd is None else self.hourly_usd / self.kind.gpus

    @property
    def usd_per_pflop_h(self) -> Decimal | None:
        """USD per hour for each 1e15 FP16 operations per second."""
        return _ratio(self.hourly_usd, self.fp16_pflop_s)

    @property
    def usd_per_tb_s(self) -> Decimal | None:
        """USD per hour for each TB per second of memory bandwidth."""
        return _ratio(self.hourly_usd, self.bandwidth_tb_s)


@dataclass(frozen=True)
class OfferMatches:
    """The result of a search: matching offers, and offers with slightly less memory, each in ranking order."""

    offers: tuple[Offer, ...]
    nearly: tuple[Offer, ...]


def rank_offers(catalog: Catalog, criteria: SearchCriteria, sort: Sort, *, home_region: str) -> OfferMatches:
    """Return the matching offers, best first by `sort`.

    Offers whose sort value is unknown come last among the types that AWS offers. Types that AWS does not offer follow
    in the same order. Among regions with the same price, `home_region` is preferred.
    """
    matching = [instance_type for instance_type in catalog.types.values() if _matches(catalog, instance_type, criteria)]
    relaxed = replace(
        criteria,
        min_memory_gib=criteria.min_memory_gib * _NEARLY,
        min_total_memory_gib=criteria.min_total_memory_gib * _NEARLY,
    )
    names = {instance_type.name for instance_type in matching}
    near = [
        instance_type
        for instance_type in catalog.types.values()
        if instance_type.name not in names and _matches(catalog, instance_type, relaxed)
    ]

    def sorted_offers(types: Iterable[InstanceType]) -> tuple[Offer, ...]:
        offers = [
            offer_of(catalog, instance_type, criteria.market, criteria.region, home_region) for instance_type in types
        ]
        return tuple(sorted(offers, key=lambda offer: _sort_key(offer, sort)))

    return OfferMatches(sorted_offers(matching), sorted_offers(near))


def offer_of(catalog: Catalog, instance_type: InstanceType, market: Market, region: str, home_region: str) -> Offer:
    """Return the offer of a type in a region, or in the cheapest region if `region` is empty."""
    priced = dict(_prices(instance_type, market, region))
    gpu = catalog.gpus[instance_type.gpu]
    if not priced:
        regions = [region] if region else sorted(_regions(instance_type), key=lambda name: (name != home_region, name))
        return Offer(instance_type, gpu, regions[0] if regions else None, None)
    cheapest = min(
        priced, key=lambda name: (priced[name][1].quantize(_CENT), name != home_region, priced[name][1], name)
    )
    lowest, usd = priced[cheapest]
    return Offer(
        instance_type, gpu, cheapest, usd, lowest if market == "spot" else None, instance_type.price_read_on(cheapest)
    )


def memory_of(gpu: Gpu, instance_type: InstanceType) -> Memory | None:
    """Return the GPU's memory size that is nearest to the instance type's, which may be slightly smaller."""
    return min(gpu.memories, key=lambda memory: abs(memory.gib - instance_type.gpu_memory_gib), default=None)


def _matches(catalog: Catalog, instance_type: InstanceType, criteria: SearchCriteria) -> bool:
    return (
        instance_type.gpu_memory_gib >= criteria.min_memory_gib
        and instance_type.gpu_memory_total_gib >= criteria.min_total_memory_gib
        and criteria.architecture in ("", catalog.gpus[instance_type.gpu].architecture)
        and criteria.count in (None, instance_type.gpus)
        and (criteria.everything or _is_available(instance_type, criteria.market))
        and (not criteria.region or criteria.region in _regions(instance_type))
    )


def _is_available(instance_type: InstanceType, market: Market) -> bool:
    """Return True if AWS offers the type in this market. Types offered only in Capacity Blocks count as on-demand."""
    return (
        instance_type.provider == "aws"
        and not instance_type.retired
        and (market == "on-demand" or "spot" in instance_type.usage_classes)
    )


def _regions(instance_type: InstanceType) -> tuple[str, ...]:
    """Return the regions that offer a type, or for a retired type the regions with its last known prices."""
    if instance_type.retired:
        return tuple(instance_type.on_demand_usd)
    return tuple(region for region, zones in instance_type.zones.items() if any(zone[:-1] == region for zone in zones))


def _prices(instance_type: InstanceType, market: Market, region: str) -> Iterator[tuple[str, tuple[Decimal, Decimal]]]:
    """Yield the lowest and highest USD per hour in the given region, or in every region if `region` is empty."""
    for name in _regions(instance_type) or tuple(instance_type.on_demand_usd):
        if region in ("", name):
            if market == "spot" and name in instance_type.spot_usd:
                yield name, instance_type.spot_usd[name]
            elif market == "on-demand" and name in instance_type.on_demand_usd:
                yield name, (instance_type.on_demand_usd[name], instance_type.on_demand_usd[name])


def _ratio(usd: Decimal | None, amount: Decimal | None) -> Decimal | None:
    return usd / amount if usd is not None and amount else None


_SORT_VALUES: Final[Mapping[Sort, Callable[[Offer], Decimal | None]]] = {
    "usd-per-hour": lambda offer: offer.hourly_usd,
    "memory": lambda offer: -offer.kind.gpu_memory_total_gib,
    "bandwidth": lambda offer: _negative(offer.bandwidth_tb_s),
    "fp16": lambda offer: _negative(offer.fp16_pflop_s),
    "usd-per-pflop-h": lambda offer: offer.usd_per_pflop_h,
    "usd-per-tb-s": lambda offer: offer.usd_per_tb_s,
}


def _sort_key(offer: Offer, sort: Sort) -> tuple[bool, bool, Decimal, bool, Decimal, str]:
    """Return the sort key. Offers with equal values are sorted by price, then by name."""
    value, usd = _SORT_VALUES[sort](offer), offer.hourly_usd
    known = Decimal(0) if value is None else value
    return (not offer.obtainable, value is None, known, usd is None, usd or Decimal(0), offer.kind.name)


def _negative(value: Decimal | None) -> Decimal | None:
    return None if value is None else -value


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
