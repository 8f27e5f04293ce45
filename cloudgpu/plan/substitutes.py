"""Other instance types, and other regions, for what a recipe asks for: found in the catalogue, the nearest first."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Final, Literal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import exclusions
from cloudgpu.plan.question import Question

Kinship = Literal["same GPU", "same size", "as much memory", "most memory"]
"""What a type has in common with the one that was asked for: its GPU; the number of its GPUs and at least the memory of
each; at least the memory of all; or, where no type has that, the most there is."""

_FEW: Final = 2
_REGIONS: Final = 3


def substitutes(question: Question) -> Iterator[tuple[Kinship, InstanceType]]:
    """Types that no rule throws out and that are sold in the recipe's regions; a few of each kinship, cheapest first.

    None where the recipe names no type that is known.
    """
    if not question.types:
        return
    asked, names = question.types[0], {kind.name for kind in question.types}
    # A rule of types looks at the whole recipe: price and place are the cheaper questions.
    pool = sorted(
        (kind for kind in question.catalog.types.values() if kind.name not in names and _sold(question, kind)),
        key=lambda kind: (_usd(question, kind), kind.name),
    )
    same = [kind for kind in pool if kind.gpu == asked.gpu]
    same.sort(key=lambda kind: (abs(kind.gpu_memory_total_gib - asked.gpu_memory_total_gib), _usd(question, kind)))
    alike = [kind for kind in pool if kind.gpus == asked.gpus and kind.gpu_memory_gib >= asked.gpu_memory_gib]
    enough = [kind for kind in pool if kind.gpu_memory_total_gib >= asked.gpu_memory_total_gib]
    yield from _first("same GPU", same, question)
    yield from _first("same size", alike, question)
    found = list(_first("as much memory", enough, question))
    less = sorted(pool, key=lambda kind: -kind.gpu_memory_total_gib)
    yield from found or list(_first("most memory", less, question))[:1]


def offered_elsewhere(question: Question) -> tuple[str, ...]:
    """Regions beside the recipe's in which one of its types is sold, the cheapest few."""
    found: dict[str, Decimal] = {}
    for kind in question.types:
        for region, usd in kind.on_demand_usd.items():
            if not kind.retired and region not in question.regions and question.zones_offering(kind, region):
                found[region] = min(usd, found.get(region, usd))
    return tuple(sorted(found, key=lambda region: (found[region], region))[:_REGIONS])


def _first(
    kinship: Kinship, kinds: Iterable[InstanceType], question: Question
) -> Iterator[tuple[Kinship, InstanceType]]:
    found = 0
    for kind in kinds:
        if not exclusions.of_type(question, kind):
            yield kinship, kind
            found += 1
        if found == _FEW:
            return


def _sold(question: Question, kind: InstanceType) -> bool:
    """Whether a type can be had in one of the recipe's regions at a known price."""
    return (
        not kind.retired
        and kind.provider == "aws"
        and any(
            region in kind.on_demand_usd and question.zones_offering(kind, region) for region in question.known_regions
        )
    )


def _usd(question: Question, kind: InstanceType) -> Decimal:
    """Its lowest price in the recipe's regions, USD an hour."""
    return min(kind.on_demand_usd[region] for region in question.known_regions if region in kind.on_demand_usd)
