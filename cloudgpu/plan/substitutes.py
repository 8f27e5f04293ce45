"""Find similar instance types and other regions in the catalog."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Final, Literal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import exclusions
from cloudgpu.plan.planner_input import Question

Kinship = Literal["same GPU", "other number", "same size", "as much memory", "most memory"]
"""How a type compares with the requested one: same GPU and count; same GPU but another count; same count with at least
as much memory per GPU; at least as much memory in total; or, if there is none of these, the most memory available.
"""

_FEW: Final = 2
_REGIONS: Final = 3


def substitutes(question: Question) -> Iterator[tuple[Kinship, InstanceType]]:
    """Yield types that no rule excludes and that the recipe's regions sell, a few of each kind, cheapest first.

    Yields nothing if the recipe names no known type.
    """
    asked = asked_for(question)
    if asked is None:
        return
    pool = _pool(question)
    same = [kind for kind in pool if kind.gpu == asked.gpu]
    same.sort(key=lambda kind: (abs(kind.gpu_memory_total_gib - asked.gpu_memory_total_gib), _usd(question, kind)))
    alike = [kind for kind in pool if kind.gpus == asked.gpus and kind.gpu_memory_gib >= asked.gpu_memory_gib]
    most = sorted(pool, key=lambda kind: -kind.gpu_memory_total_gib)
    enough = list(islice(with_as_much_memory(question), _FEW))
    found: dict[Kinship, Iterable[InstanceType]] = {
        "same GPU": islice(_usable(question, [kind for kind in same if kind.gpus == asked.gpus]), _FEW),
        "other number": islice(_usable(question, [kind for kind in same if kind.gpus != asked.gpus]), 1),
        "same size": islice(_usable(question, alike), _FEW),
        "as much memory": enough,
        "most memory": () if enough else islice(_usable(question, most), 1),
    }
    for kinship, kinds in found.items():
        yield from ((kinship, kind) for kind in kinds)


def with_as_much_memory(question: Question) -> Iterator[InstanceType]:
    """Yield other types with at least as much total GPU memory as the first requested type, cheapest first."""
    asked = asked_for(question)
    if asked is not None:
        enough = [kind for kind in _pool(question) if kind.gpu_memory_total_gib >= asked.gpu_memory_total_gib]
        yield from _usable(question, enough)


def asked_for(question: Question) -> InstanceType | None:
    """Return the first requested type, which others are compared with. It may be a machine that AWS does not offer."""
    named = (question.catalog.types.get(spec) for spec in question.specs)
    return next(iter(question.types), None) or next((kind for kind in named if kind is not None), None)


def offered_elsewhere(question: Question) -> tuple[str, ...]:
    """Return the cheapest other regions that sell one of the recipe's types."""
    found: dict[str, Decimal] = {}
    for kind in question.types:
        for region, usd in kind.on_demand_usd.items():
            if not kind.retired and region not in question.regions and question.zones_offering(kind, region):
                found[region] = min(usd, found.get(region, usd))
    return tuple(sorted(found, key=lambda region: (found[region], region))[:_REGIONS])


def _pool(question: Question) -> list[InstanceType]:
    """Return every other type that the recipe's regions sell, cheapest first."""
    names = {kind.name for kind in question.types}
    sold = [kind for kind in question.catalog.types.values() if kind.name not in names and _sold(question, kind)]
    return sorted(sold, key=lambda kind: (_usd(question, kind), kind.name))


def _usable(question: Question, kinds: Iterable[InstanceType]) -> Iterator[InstanceType]:
    """Yield the types that no rule excludes. Lazy, because rules are more expensive than prices."""
    return (kind for kind in kinds if not exclusions.of_type(question, kind))


def _sold(question: Question, kind: InstanceType) -> bool:
    """Return True if a type is available in one of the recipe's regions at a known price."""
    return (
        not kind.retired
        and kind.provider == "aws"
        and any(
            region in kind.on_demand_usd and question.zones_offering(kind, region) for region in question.known_regions
        )
    )


def _usd(question: Question, kind: InstanceType) -> Decimal:
    """Return the lowest price of a type in the recipe's regions, USD per hour."""
    return min(kind.on_demand_usd[region] for region in question.known_regions if region in kind.on_demand_usd)
