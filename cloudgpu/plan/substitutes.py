"""Find similar instance types and other regions, and the `--set` options to try when there was no capacity."""

from collections.abc import Iterable, Iterator, Set
from decimal import Decimal
from itertools import islice
from typing import Final, Literal

from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.prices_and_quotas import Quota, quota_of
from cloudgpu.plan import exclusions
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.text import command

Kinship = Literal["same GPU", "other number", "same size", "as much memory", "most memory"]
"""How a type relates to the requested type: same GPU and count; same GPU with another count; same count with at least
as much memory per GPU; at least as much memory in total; or, if no type has enough memory, the most memory.
"""

_FEW: Final = 2
_REGIONS: Final = 3
_MORE_REGIONS = 2
_OTHER_MARKET = {"on-demand": "spot", "spot": "on-demand"}


def substitutes(inputs: PlannerInput) -> Iterator[tuple[Kinship, InstanceType]]:
    """Yield the best few types for each relation, among types that the recipe's regions offer and no rule excludes.

    Yield nothing if the recipe requests no known type.
    """
    requested = first_requested_type(inputs)
    if requested is None:
        return
    pool = _pool(inputs)
    same = [instance_type for instance_type in pool if instance_type.gpu == requested.gpu]
    same.sort(
        key=lambda instance_type: (
            abs(instance_type.gpu_memory_total_gib - requested.gpu_memory_total_gib),
            _usd(inputs, instance_type),
        )
    )
    alike = [
        instance_type
        for instance_type in pool
        if instance_type.gpus == requested.gpus and instance_type.gpu_memory_gib >= requested.gpu_memory_gib
    ]
    most = sorted(pool, key=lambda instance_type: -instance_type.gpu_memory_total_gib)
    enough = list(islice(with_as_much_memory(inputs), _FEW))
    by_kinship: dict[Kinship, Iterable[InstanceType]] = {
        "same GPU": islice(
            _usable(inputs, [instance_type for instance_type in same if instance_type.gpus == requested.gpus]), _FEW
        ),
        "other number": islice(
            _usable(inputs, [instance_type for instance_type in same if instance_type.gpus != requested.gpus]), 1
        ),
        "same size": islice(_usable(inputs, alike), _FEW),
        "as much memory": enough,
        "most memory": () if enough else islice(_usable(inputs, most), 1),
    }
    for kinship, types in by_kinship.items():
        yield from ((kinship, instance_type) for instance_type in types)


def with_as_much_memory(inputs: PlannerInput) -> Iterator[InstanceType]:
    """Yield other types with at least as much total GPU memory as the first requested type, cheapest first."""
    requested = first_requested_type(inputs)
    if requested is not None:
        enough = [
            instance_type
            for instance_type in _pool(inputs)
            if instance_type.gpu_memory_total_gib >= requested.gpu_memory_total_gib
        ]
        yield from _usable(inputs, enough)


def first_requested_type(inputs: PlannerInput) -> InstanceType | None:
    """Return the first requested type, to which substitutes are compared. AWS may not offer this type."""
    named = (inputs.catalog.types.get(spec) for spec in inputs.specs)
    return next(iter(inputs.types), None) or next(
        (instance_type for instance_type in named if instance_type is not None), None
    )


def offered_elsewhere(inputs: PlannerInput) -> tuple[str, ...]:
    """Return the cheapest other regions that offer one of the recipe's types."""
    prices: dict[str, Decimal] = {}
    for instance_type in inputs.types:
        for region, usd in instance_type.on_demand_usd.items():
            if (
                not instance_type.retired
                and region not in inputs.regions
                and inputs.zones_offering(instance_type, region)
            ):
                prices[region] = min(usd, prices.get(region, usd))
    return tuple(sorted(prices, key=lambda region: (prices[region], region))[:_REGIONS])


def _pool(inputs: PlannerInput) -> list[InstanceType]:
    """Return every other type that the recipe's regions offer, cheapest first."""
    names = {instance_type.name for instance_type in inputs.types}
    offered = [
        instance_type
        for instance_type in inputs.catalog.types.values()
        if instance_type.name not in names and _is_offered(inputs, instance_type)
    ]
    return sorted(offered, key=lambda instance_type: (_usd(inputs, instance_type), instance_type.name))


def _usable(inputs: PlannerInput, types: Iterable[InstanceType]) -> Iterator[InstanceType]:
    """Yield the types that no rule excludes. Evaluated lazily because checking the rules is slow."""
    return (instance_type for instance_type in types if not exclusions.type_exclusions(inputs, instance_type))


def _is_offered(inputs: PlannerInput, instance_type: InstanceType) -> bool:
    """Return True if one of the recipe's regions offers a type at a known price."""
    return (
        not instance_type.retired
        and instance_type.provider == "aws"
        and any(
            region in instance_type.on_demand_usd and inputs.zones_offering(instance_type, region)
            for region in inputs.known_regions
        )
    )


def _usd(inputs: PlannerInput, instance_type: InstanceType) -> Decimal:
    """Return the lowest price of a type in the recipe's regions, in USD per hour."""
    return min(
        instance_type.on_demand_usd[region] for region in inputs.known_regions if region in instance_type.on_demand_usd
    )


def alternatives(plan: Plan, catalog: Catalog, bound: Set[Quota] = frozenset()) -> tuple[str, ...]:
    """Return `--set` options that select another market, more regions or a similar type; empty without candidates.

    Types that cannot run the recipe's software or whose quota is in `bound`, the exhausted quotas, are not suggested.
    """
    if not plan.candidates:
        return ()
    first = plan.candidates[0]
    inputs = PlannerInput(plan.recipe, plan.target, catalog, Quotes(), first.region, first.priced_on)
    groups = (_market(plan, catalog), _regions(plan, inputs), _type(inputs, bound))
    return tuple(option for group in groups for option in group)


def _market(plan: Plan, catalog: Catalog) -> Iterator[str]:
    """Yield the option that selects the other market, unless both were tried or EC2 does not offer the type in it."""
    markets = {candidate.market for candidate in plan.candidates}
    instance_type = catalog.types.get(plan.candidates[0].instance_type)
    for market in markets:
        other = _OTHER_MARKET.get(market, "on-demand")
        if other not in markets and (instance_type is None or other in instance_type.usage_classes):
            # A reserved market also sets `resources.reservation`, which must be cleared.
            reserved = [] if market in _OTHER_MARKET else ["--set", "resources.reservation="]
            yield command("--set", f"resources.market={other}", *reserved)


def _regions(plan: Plan, inputs: PlannerInput) -> Iterator[str]:
    """Yield the `--set` option that adds the cheapest untried regions in which the types have a known price."""
    tried = dict.fromkeys(candidate.region for candidate in plan.candidates)
    # A saved plan may contain regions that its recipe no longer lists.
    more = [name for name in offered_elsewhere(inputs) if name not in tried][:_MORE_REGIONS]
    if more:
        anywhere = ["--set", "resources.zones="] if inputs.recipe.resources.zones else []
        yield command("--set", f"resources.regions={','.join([*tried, *more])}", *anywhere)


def _type(inputs: PlannerInput, bound: Set[Quota]) -> Iterator[str]:
    """Yield the option that selects the cheapest other type with at least as much GPU memory.

    Types with the same number of GPUs are preferred.
    """
    types = [
        instance_type
        for instance_type in with_as_much_memory(inputs)
        if quota_of(instance_type.name, inputs.market) not in bound
    ]
    if types:
        gpus = inputs.types[0].gpus
        best = min(types, key=lambda instance_type: instance_type.gpus != gpus)
        yield command("--set", f"resources.instance_type={best.name}")
