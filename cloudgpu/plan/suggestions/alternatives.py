"""Suggest `--set` options to try when none of a plan's candidates had capacity."""

from collections.abc import Iterator, Set

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.suggestions.substitutes import offered_elsewhere, with_as_much_memory
from cloudgpu.text import command

_MORE_REGIONS = 2
_OTHER_MARKET = {"on-demand": "spot", "spot": "on-demand"}


def alternatives(plan: Plan, catalog: Catalog, bound: Set[Quota] = frozenset()) -> tuple[str, ...]:
    """Return `--set` options that select another market, more regions or a similar type; empty without candidates.

    Types that cannot run the recipe's software or whose quota is in `bound`, the exhausted quotas, are not suggested.
    """
    if not plan.candidates:
        return ()
    first = plan.candidates[0]
    question = PlannerInput(plan.recipe, plan.target, catalog, Quotes(), first.region, first.priced_on)
    groups = (_market(plan, catalog), _regions(plan, question), _type(question, bound))
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


def _regions(plan: Plan, question: PlannerInput) -> Iterator[str]:
    """Yield the `--set` option that adds the cheapest untried regions in which the types have a known price."""
    tried = dict.fromkeys(candidate.region for candidate in plan.candidates)
    # A saved plan may contain regions that its recipe no longer lists.
    more = [name for name in offered_elsewhere(question) if name not in tried][:_MORE_REGIONS]
    if more:
        anywhere = ["--set", "resources.zones="] if question.recipe.resources.zones else []
        yield command("--set", f"resources.regions={','.join([*tried, *more])}", *anywhere)


def _type(question: PlannerInput, bound: Set[Quota]) -> Iterator[str]:
    """Yield the option that selects the cheapest other type with at least as much GPU memory.

    Types with the same number of GPUs are preferred.
    """
    types = [
        instance_type
        for instance_type in with_as_much_memory(question)
        if quota_of(instance_type.name, question.market) not in bound
    ]
    if types:
        gpus = question.types[0].gpus
        best = min(types, key=lambda instance_type: instance_type.gpus != gpus)
        yield command("--set", f"resources.instance_type={best.name}")
