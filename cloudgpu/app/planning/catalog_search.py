"""`gpus` and `containers`: find instance types and framework containers that match the options."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from cloudgpu.catalog import Catalog, Gpu
from cloudgpu.catalog.compatibility import (
    ContainerFit,
    FrameworkImage,
    NgcMonth,
    Software,
    container_fit,
    find_gpu,
    latest,
    release_of,
)
from cloudgpu.catalog.gpu_spec import parse_gib
from cloudgpu.catalog.ranking import Market, OfferMatches, SearchCriteria, Sort, rank_offers
from cloudgpu.errors import UsageError
from cloudgpu.recipe.problem import nearest_name, suggestion
from cloudgpu.text import command


@dataclass(frozen=True)
class ContainerQuery:
    """The options of `containers` as typed."""

    framework: str = ""
    gpu: str = ""
    latest_for: str = ""


@dataclass(frozen=True)
class MatchingContainer:
    """A container image with its contents and GPU compatibility."""

    image: FrameworkImage
    release: NgcMonth | None
    """Contents of the image's monthly release, or None if unknown."""
    natives: tuple[Gpu, ...]
    """GPUs for which the image contains native code, by ascending compute capability."""
    verdict: ContainerFit | None
    """Compatibility with the requested GPU, or None if no GPU was requested."""


@dataclass(frozen=True)
class ContainerListing:
    """The matching containers, and the GPU for which they were checked, if any."""

    containers: tuple[MatchingContainer, ...]
    gpu: Gpu | None
    latest: bool


def find_containers(query: ContainerQuery, catalog: Catalog, software: Software) -> ContainerListing:
    """Return the matching containers in catalog order; if a GPU is given, only containers that run on it.

    Raises:
        UsageError: The framework is unknown, or both `--gpu` and `--latest-for` were given.
        RecipeError: The GPU is not in the catalog.
    """
    if query.gpu and query.latest_for:
        message = "--gpu and --latest-for are mutually exclusive"
        raise UsageError(
            message, hint="use one of them; --latest-for shows only the latest container of each framework"
        )
    name = query.latest_for or query.gpu
    gpu = find_gpu(catalog, name) if name else None
    images = software.images if gpu is None or not query.latest_for else latest(software, gpu)
    framework = _framework(software, query.framework)
    matches = []
    for image in images:
        verdict = None if gpu is None else container_fit(image, gpu)
        if framework in ("", image.framework) and (verdict is None or verdict.fit != "no"):
            matches.append(
                MatchingContainer(image, release_of(image.image, software), _natives(catalog, image), verdict)
            )
    return ContainerListing(tuple(matches), gpu, latest=bool(query.latest_for))


def _natives(catalog: Catalog, image: FrameworkImage) -> tuple[Gpu, ...]:
    native = [gpu for gpu in catalog.gpus.values() if container_fit(image, gpu).fit == "native"]
    return tuple(sorted(native, key=lambda gpu: (gpu.sm, gpu.name)))


def _framework(software: Software, name: str) -> str:
    known = {image.framework.lower(): image.framework for image in software.images}
    if name and name.lower() not in known:
        message = f"--framework {name}: no known container includes this framework{suggestion(name, known.values())}"
        raise UsageError(message, hint=f"known frameworks: {', '.join(known.values())}")
    return known[name.lower()] if name else ""


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
