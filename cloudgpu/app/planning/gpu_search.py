"""`gpus`: from what was typed to the instance types that fit, and what to type when none does."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.memory_text import gib
from cloudgpu.catalog.ranking import Found, Market, Sort, Wanted, ranked
from cloudgpu.errors import UsageError
from cloudgpu.recipe.nearest import nearest, suggestion
from cloudgpu.text import command


@dataclass(frozen=True)
class Asked:
    """What was typed, option by option."""

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
    """How many types would fit with one of the options changed."""

    change: str
    """For instance `without --count 3`."""
    types: int


@dataclass(frozen=True)
class Answer:
    """What fits, and where nothing does, which option is in the way."""

    asked: Asked
    found: Found
    loosened: tuple[RelaxedQuery, ...]
    home_region: str


def answer(asked: Asked, catalog: Catalog, home_region: str) -> Answer:
    """The types that fit what was asked for, in the order that was asked for.

    Raises:
        UsageError: An option names no memory, no architecture or no region.
    """
    wanted = Wanted(
        min_memory_gib=_memory("--min-memory", asked.min_memory),
        min_total_memory_gib=_memory("--min-total-memory", asked.min_total_memory),
        architecture=_architecture(catalog, asked.arch),
        count=asked.count,
        region=_region(catalog, asked.region),
        market=asked.market,
        everything=asked.everything,
    )
    found = ranked(catalog, wanted, asked.sort, home_region=home_region)
    loosened = () if found.offers else tuple(_loosened(asked, wanted, catalog))
    return Answer(asked, found, loosened, home_region)


def _loosened(asked: Asked, wanted: Wanted, catalog: Catalog) -> Iterator[RelaxedQuery]:
    """What each single change would find; those that find nothing by themselves are left out."""
    without = {
        command("--min-memory", asked.min_memory): replace(wanted, min_memory_gib=Decimal(0)),
        command("--min-total-memory", asked.min_total_memory): replace(wanted, min_total_memory_gib=Decimal(0)),
        command("--arch", asked.arch): replace(wanted, architecture=""),
        command("--count", str(asked.count)): replace(wanted, count=None),
        command("--region", asked.region): replace(wanted, region=""),
        "--spot": replace(wanted, market="on-demand"),
    }
    changes = {f"without {option}": looser for option, looser in without.items() if looser != wanted}
    for change, looser in {**changes, "with --all": replace(wanted, everything=True)}.items():
        types = len(ranked(catalog, looser, asked.sort, home_region="").offers)
        if types:
            yield RelaxedQuery(change, types)


def _memory(option: str, said: str) -> Decimal:
    try:
        return gib(said) if said else Decimal(0)
    except ValueError as err:
        raise UsageError(f"{option} {said}: {err}", hint=f"for instance {option} 32GB") from None


def _architecture(catalog: Catalog, said: str) -> str:
    known = {gpu.architecture.lower(): gpu.architecture for gpu in catalog.gpus.values()}
    if said and said.lower() not in known:
        message = f"--arch {said}: no GPU of the catalogue has this architecture{suggestion(said, known)}"
        raise UsageError(message, hint=f"known architectures: {', '.join(known)}")
    return known[said.lower()] if said else ""


def _region(catalog: Catalog, said: str) -> str:
    if said and said not in catalog.regions:
        near = nearest(said, catalog.regions)
        message = f"--region {said}: no such region in the catalogue{suggestion(said, catalog.regions)}"
        raise UsageError(message, hint=f"for instance {command('--region', near or catalog.regions[0])}")
    return said
