"""What else could be had when a plan's candidates could not: pure suggestions, each one an option to type."""

from collections.abc import Iterator, Set

from cloudgpu.catalog import Catalog, InstanceType
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.plan import Candidate, Plan

_MORE_REGIONS = 2


def alternatives(plan: Plan, catalog: Catalog, bound: Set[Quota] = frozenset()) -> tuple[str, ...]:
    """`--set ...` fragments: the other market, more regions, the nearest other type; none for a plan of nothing.

    No type is named that counts against one of the quotas that `bound`.
    """
    if not plan.candidates:
        return ()
    return tuple(
        one for found in (_market(plan), _regions(plan, catalog), _type(plan, catalog, bound)) for one in found
    )


def _market(plan: Plan) -> Iterator[str]:
    market = plan.candidates[0].market
    yield f"--set resources.market={'spot' if market == 'on-demand' else 'on-demand'}"


def _regions(plan: Plan, catalog: Catalog) -> Iterator[str]:
    """Those in which the first type is offered at a known price, the cheapest first."""
    tried = list(dict.fromkeys(one.region for one in plan.candidates))
    kind = catalog.types.get(plan.candidates[0].instance_type)
    if kind is None:
        return
    others = sorted(
        (usd, name) for name, usd in kind.on_demand_usd.items() if name not in tried and kind.zones.get(name)
    )
    more = [name for _, name in others[:_MORE_REGIONS]]
    if more:
        yield f"--set resources.regions={','.join([*tried, *more])}"


def _type(plan: Plan, catalog: Catalog, bound: Set[Quota]) -> Iterator[str]:
    """The cheapest other type with at least as much GPU memory in the node, where it is offered and priced."""
    tried = {one.instance_type for one in plan.candidates}
    first = plan.candidates[0]
    found = [
        (kind.on_demand_usd[first.region], kind.name)
        for kind in catalog.types.values()
        if kind.name not in tried and not kind.retired and first.region in kind.on_demand_usd and _holds(kind, first)
        if quota_of(kind.name, first.market) not in bound
    ]
    if found:
        yield f"--set resources.instance_type={min(found)[1]}"


def _holds(kind: InstanceType, wanted: Candidate) -> bool:
    return kind.gpus * kind.gpu_memory_gib >= wanted.gpus_per_node * wanted.gpu_memory_gib
