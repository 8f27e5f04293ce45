"""`gpus`: find the instance types that match the options, and suggest which option to relax if none match."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.memory_text import parse_gib
from cloudgpu.catalog.ranking import Market, OfferMatches, SearchCriteria, Sort, rank_offers
from cloudgpu.errors import UsageError
from cloudgpu.recipe.name_suggestions import nearest_name, suggestion
from cloudgpu.text import command


@dataclass(frozen=True)
class GpuQuery:
    """The options of `gpus` as typed."""

    min_memory: str = ""
    min_total_memory: str = ""
    arch: str = ""
    count: int | None = None
    region: str = ""
    market: Market = "on-demand"
    everything: bool = False
    sort: Sort = "usd-per-hour"


@dataclass(frozen=True)
class RelaxedQuery:
    """A change to one option of a query, and the number of types that would then match."""

    change: str
    """Description of the change, for example `without --count 3`."""
    types: int


@dataclass(frozen=True)
class GpuSearchResult:
    """The result of a search: the matching types or, if none match, changes to the query that would match some."""

    asked: GpuQuery
    found: OfferMatches
    relaxations: tuple[RelaxedQuery, ...]
    home_region: str


def search_gpus(query: GpuQuery, catalog: Catalog, home_region: str) -> GpuSearchResult:
    """Find the instance types that match the query, in the requested order.

    Raises:
        UsageError: An option is not a valid memory size, architecture or region.
    """
    filters = SearchCriteria(
        min_memory_gib=_memory("--min-memory", query.min_memory),
        min_total_memory_gib=_memory("--min-total-memory", query.min_total_memory),
        architecture=_architecture(catalog, query.arch),
        count=query.count,
        region=_region(catalog, query.region),
        market=query.market,
        everything=query.everything,
    )
    matches = rank_offers(catalog, filters, query.sort, home_region=home_region)
    loosened = () if matches.offers else tuple(_relaxed(query, filters, catalog))
    return GpuSearchResult(query, matches, loosened, home_region)


def _relaxed(query: GpuQuery, filters: SearchCriteria, catalog: Catalog) -> Iterator[RelaxedQuery]:
    """Yield each change to a single option that would make at least one type match."""
    without = {
        command("--min-memory", query.min_memory): replace(filters, min_memory_gib=Decimal(0)),
        command("--min-total-memory", query.min_total_memory): replace(filters, min_total_memory_gib=Decimal(0)),
        command("--arch", query.arch): replace(filters, architecture=""),
        command("--count", str(query.count)): replace(filters, count=None),
        command("--region", query.region): replace(filters, region=""),
        "--spot": replace(filters, market="on-demand"),
    }
    changes = {f"without {option}": relaxed for option, relaxed in without.items() if relaxed != filters}
    for change, relaxed in {**changes, "with --all": replace(filters, everything=True)}.items():
        types = len(rank_offers(catalog, relaxed, query.sort, home_region="").offers)
        if types:
            yield RelaxedQuery(change, types)


def _memory(option: str, text: str) -> Decimal:
    try:
        return parse_gib(text) if text else Decimal(0)
    except ValueError as err:
        raise UsageError(f"{option} {text}: {err}", hint=f"use a size such as {option} 32GB") from None


def _architecture(catalog: Catalog, name: str) -> str:
    known = {gpu.architecture.lower(): gpu.architecture for gpu in catalog.gpus.values()}
    if name and name.lower() not in known:
        message = f"--arch {name}: no GPU in the catalog has this architecture{suggestion(name, known)}"
        raise UsageError(message, hint=f"known architectures: {', '.join(known)}")
    return known[name.lower()] if name else ""


def _region(catalog: Catalog, region: str) -> str:
    if region and region not in catalog.regions:
        closest = nearest_name(region, catalog.regions)
        message = f"--region {region}: not a region in the catalog{suggestion(region, catalog.regions)}"
        raise UsageError(message, hint=f"use a region such as {command('--region', closest or catalog.regions[0])}")
    return region
