"""Rank the instance types that meet a requirement by price per unit of compute, memory and bandwidth. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Final, Literal

from cloudgpu.catalog.catalog import Catalog
from cloudgpu.catalog.gpu_spec import spelled
from cloudgpu.catalog.hardware import Gpu, InstanceType, Memory

Sort = Literal["usd-per-hour", "memory", "bandwidth", "fp16", "usd-per-pflop-h", "usd-per-tb-s"]
Market = Literal["on-demand", "spot"]

_THOUSAND: Final = Decimal(1000)
_CENT: Final = Decimal("0.01")
"""Price lists round the same price differently; a millionth of a dollar makes no region the cheaper one."""
_NEARLY: Final = Decimal("0.9")
"""What has at least this share of the memory that is asked for is worth a word: 22.35 GiB are sold as 24 GB."""


@dataclass(frozen=True)
class SearchCriteria:
    """Search criteria; defaults match everything."""

    min_memory_gib: Decimal = Decimal(0)
    """Of each GPU."""
    min_total_memory_gib: Decimal = Decimal(0)
    """Of all GPUs of one instance."""
    architecture: str = ""
    count: int | None = None
    """GPUs of one instance, exactly."""
    region: str = ""
    """Only what this region offers; empty for the cheapest region of each type."""
    market: Market = "on-demand"
    everything: bool = False
    """Also what nobody can launch any more, and machines that AWS does not have."""


@dataclass(frozen=True)
class Offer:
    """An instance type at one price, for comparison. None is unknown.

    Rates, bandwidth and memory are theoretical peaks of all GPUs of the instance together.
    """

    kind: InstanceType
    gpu: Gpu
    region: str | None
    hourly_usd: Decimal | None
    """USD an hour; for spot the highest seen, which is also what a plan reckons with."""
    lowest_usd: Decimal | None = None
    """For spot the lowest seen."""
    priced_on: date | None = None

    @property
    def obtainable(self) -> bool:
        """True if AWS still lets customers launch the type."""
        return self.kind.provider == "aws" and not self.kind.retired

    @property
    def spec(self) -> str:
        """GPU spec for a recipe: `T4:1`, or `V100-32GB:8` if the GPU comes in several sizes."""
        memory = memory_of(self.gpu, self.kind)
        return spelled(self.gpu, self.kind.gpus, None if memory is None else memory.gib)

    @property
    def block_usd(self) -> Decimal | None:
        """USD per hour in a Capacity Block of the same region, paid in advance; None if it is not sold."""
        return self.kind.capacity_block_usd.get(self.region or "")

    @property
    def bandwidth_tb_s(self) -> Decimal | None:
        """Memory bandwidth, TB (1e12 bytes) per second."""
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
        """USD per GPU and hour."""
        return None if self.hourly_usd is None else self.hourly_usd / self.kind.gpus

    @property
    def usd_per_pflop_h(self) -> Decimal | None:
        """USD per hour for 1e15 FP16 operations per second."""
        return _ratio(self.hourly_usd, self.fp16_pflop_s)

    @property
    def usd_per_tb_s(self) -> Decimal | None:
        """USD per hour for 1 TB per second of memory bandwidth."""
        return _ratio(self.hourly_usd, self.bandwidth_tb_s)


@dataclass(frozen=True)
class OfferMatches:
    """Matching offers in order, and those with slightly less memory than requested."""

    offers: tuple[Offer, ...]
    nearly: tuple[Offer, ...]


def ranked(catalog: Catalog, wanted: SearchCriteria, sort: Sort, *, home_region: str) -> OfferMatches:
    """Return the matching types, best first by `sort`, with unknown figures last and unavailable types at the end.

    Among regions with the same price, `home_region` is preferred.
    """
    fitting = [kind for kind in catalog.types.values() if _fits(catalog, kind, wanted)]
    larger = replace(
        wanted,
        min_memory_gib=wanted.min_memory_gib * _NEARLY,
        min_total_memory_gib=wanted.min_total_memory_gib * _NEARLY,
    )
    names = {kind.name for kind in fitting}
    near = [kind for kind in catalog.types.values() if kind.name not in names and _fits(catalog, kind, larger)]

    def offers(kinds: Iterable[InstanceType]) -> tuple[Offer, ...]:
        made = [offer_of(catalog, kind, wanted.market, wanted.region, home_region) for kind in kinds]
        return tuple(sorted(made, key=lambda offer: _place(offer, sort)))

    return OfferMatches(offers(fitting), offers(near))


def offer_of(catalog: Catalog, kind: InstanceType, market: Market, region: str, home_region: str) -> Offer:
    """Return the offer of a type in a region, or in the cheapest region if `region` is empty."""
    priced = dict(_prices(kind, market, region))
    gpu = catalog.gpus[kind.gpu]
    if not priced:
        places = [region] if region else sorted(_regions(kind), key=lambda name: (name != home_region, name))
        return Offer(kind, gpu, places[0] if places else None, None)
    where = min(priced, key=lambda name: (priced[name][1].quantize(_CENT), name != home_region, priced[name][1], name))
    lowest, usd = priced[where]
    return Offer(kind, gpu, where, usd, lowest if market == "spot" else None, kind.price_read_on(where))


def memory_of(gpu: Gpu, kind: InstanceType) -> Memory | None:
    """Return the memory size of a type's GPU: the nearest one, because clouds may report slightly less."""
    return min(gpu.memories, key=lambda memory: abs(memory.gib - kind.gpu_memory_gib), default=None)


def _fits(catalog: Catalog, kind: InstanceType, wanted: SearchCriteria) -> bool:
    return (
        kind.gpu_memory_gib >= wanted.min_memory_gib
        and kind.gpu_memory_total_gib >= wanted.min_total_memory_gib
        and wanted.architecture in ("", catalog.gpus[kind.gpu].architecture)
        and wanted.count in (None, kind.gpus)
        and (wanted.everything or _can_be_had(kind, wanted.market))
        and (not wanted.region or wanted.region in _regions(kind))
    )


def _can_be_had(kind: InstanceType, market: Market) -> bool:
    """Return True if AWS sells the type, including in Capacity Blocks, whose price only AWS knows."""
    return kind.provider == "aws" and not kind.retired and (market == "on-demand" or "spot" in kind.usage_classes)


def _regions(kind: InstanceType) -> tuple[str, ...]:
    """Return the regions that offer a type, or that used to offer a retired one."""
    if kind.retired:
        return tuple(kind.on_demand_usd)
    return tuple(region for region, zones in kind.zones.items() if any(zone[:-1] == region for zone in zones))


def _prices(kind: InstanceType, market: Market, region: str) -> Iterator[tuple[str, tuple[Decimal, Decimal]]]:
    """Yield the lowest and highest USD per hour of each region that may be meant."""
    for name in _regions(kind) or tuple(kind.on_demand_usd):
        if region in ("", name):
            if market == "spot" and name in kind.spot_usd:
                yield name, kind.spot_usd[name]
            elif market == "on-demand" and name in kind.on_demand_usd:
                yield name, (kind.on_demand_usd[name], kind.on_demand_usd[name])


def _ratio(usd: Decimal | None, amount: Decimal | None) -> Decimal | None:
    return usd / amount if usd is not None and amount else None


_FIGURES: Final[Mapping[Sort, Callable[[Offer], Decimal | None]]] = {
    "usd-per-hour": lambda offer: offer.hourly_usd,
    "memory": lambda offer: -offer.kind.gpu_memory_total_gib,
    "bandwidth": lambda offer: _negative(offer.bandwidth_tb_s),
    "fp16": lambda offer: _negative(offer.fp16_pflop_s),
    "usd-per-pflop-h": lambda offer: offer.usd_per_pflop_h,
    "usd-per-tb-s": lambda offer: offer.usd_per_tb_s,
}


def _place(offer: Offer, sort: Sort) -> tuple[bool, bool, Decimal, bool, Decimal, str]:
    """Return the sort key. Equal offers are sorted by price, then by name."""
    figure, usd = _FIGURES[sort](offer), offer.hourly_usd
    known = Decimal(0) if figure is None else figure
    return (not offer.obtainable, figure is None, known, usd is None, usd or Decimal(0), offer.kind.name)


def _negative(figure: Decimal | None) -> Decimal | None:
    return None if figure is None else -figure
