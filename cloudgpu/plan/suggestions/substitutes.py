"""Find similar instance types and other regions in the catalog."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Final, Literal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.candidates import exclusions
from cloudgpu.plan.planner_input import PlannerInput

Kinship = Literal["same GPU", "other number", "same size", "as much memory", "most memory"]
"""How a type relates to the requested type: same GPU and count; same GPU with another count; same count with at least
as much memory per GPU; at least as much memory in total; or, if no type has enough memory, the most memory.
"""

_FEW: Final = 2
_REGIONS: Final = 3


def substitutes(question: PlannerInput) -> Iterator[tuple[Kinship, InstanceType]]:
    """Yield the best few types for each relation, among types that the recipe's regions offer and no rule excludes.

    Yield nothing if the recipe requests no known type.
    """
    requested = first_requested_type(question)
    if requested is None:
        return
    pool = _pool(question)
    same = [instance_type for instance_type in pool if instance_type.gpu == requested.gpu]
    same.sort(
        key=lambda instance_type: (
            abs(instance_type.gpu_memory_total_gib - requested.gpu_memory_total_gib),
            _usd(question, instance_type),
        )
    )
    alike = [
        instance_type
        for instance_type in pool
        if instance_type.gpus == requested.gpus and instance_type.gpu_memory_gib >= requested.gpu_memory_gib
    ]
    most = sorted(pool, key=lambda instance_type: -instance_type.gpu_memory_total_gib)
    enough = list(islice(with_as_much_memory(question), _FEW))
    by_kinship: dict[Kinship, Iterable[InstanceType]] = {
        "same GPU": islice(
            _usable(question, [instance_type for instance_type in same if instance_type.gpus == requested.gpus]), _FEW
        ),
        "other number": islice(
            _usable(question, [instance_type for instance_type in same if instance_type.gpus != requested.gpus]), 1
        ),
        "same size": islice(_usable(question, alike), _FEW),
        "as much memory": enough,
        "most memory": () if enough else islice(_usable(question, most), 1),
    }
    for kinship, types in by_kinship.items():
        yield from ((kinship, instance_type) for instance_type in types)


def with_as_much_memory(question: PlannerInput) -> Iterator[InstanceType]:
    """Yield other types with at least as much total GPU memory as the first requested type, cheapest first."""
    requested = first_requested_type(question)
    if requested is not None:
        enough = [
            instance_type
            for instance_type in _pool(question)
            if instance_type.gpu_memory_total_gib >= requested.gpu_memory_total_gib
        ]
        yield from _usable(question, enough)


def first_requested_type(question: PlannerInput) -> InstanceType | None:
    """Return the first requested type, to which substitutes are compared. AWS may not offer this type."""
    named = (question.catalog.types.get(spec) for spec in question.specs)
    return next(iter(question.types), None) or next(
        (instance_type for instance_type in named if instance_type is not None), None
    )


def offered_elsewhere(question: PlannerInput) -> tuple[str, ...]:
    """Return the cheapest other regions that offer one of the recipe's types."""
    prices: dict[str, Decimal] = {}
    for instance_type in question.types:
        for region, usd in instance_type.on_demand_usd.items():
            if (
                not instance_type.retired
                and region not in question.regions
                and question.zones_offering(instance_type, region)
            ):
                prices[region] = min(usd, prices.get(region, usd))
    return tuple(sorted(prices, key=lambda region: (prices[region], region))[:_REGIONS])


def _pool(question: PlannerInput) -> list[InstanceType]:
    """Return every other type that the recipe's regions offer, cheapest first."""
    names = {instance_type.name for instance_type in question.types}
    offered = [
        instance_type
        for instance_type in question.catalog.types.values()
        if instance_type.name not in names and _is_offered(question, instance_type)
    ]
    return sorted(offered, key=lambda instance_type: (_usd(question, instance_type), instance_type.name))


def _usable(question: PlannerInput, types: Iterable[InstanceType]) -> Iterator[InstanceType]:
    """Yield the types that no rule excludes. Evaluated lazily because checking the rules is slow."""
    return (instance_type for instance_type in types if not exclusions.type_exclusions(question, instance_type))


def _is_offered(question: PlannerInput, instance_type: InstanceType) -> bool:
    """Return True if one of the recipe's regions offers a type at a known price."""
    return (
        not instance_type.retired
        and instance_type.provider == "aws"
        and any(
            region in instance_type.on_demand_usd and question.zones_offering(instance_type, region)
            for region in question.known_regions
        )
    )


def _usd(question: PlannerInput, instance_type: InstanceType) -> Decimal:
    """Return the lowest price of a type in the recipe's regions, in USD per hour."""
    return min(
        instance_type.on_demand_usd[region]
        for region in question.known_regions
        if region in instance_type.on_demand_usd
    )
