"""Suggest `--set` options to try when none of a plan's candidates had capacity."""

from collections.abc import Iterator, Set

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import Question
from cloudgpu.plan.substitutes import offered_elsewhere, with_as_much_memory
from cloudgpu.text import command

_MORE_REGIONS = 2
_OTHER_MARKET = {"on-demand": "spot", "spot": "on-demand"}


def alternatives(plan: Plan, catalog: Catalog, bound: Set[Quota] = frozenset()) -> tuple[str, ...]:
    """Return `--set ...` options: the other market, more regions, a similar type; none for a plan without candidates.

    Types that count against a quota in `bound`, or that cannot run the recipe's software, are not suggested.
    """
    if not plan.candidates:
        return ()
    first = plan.candidates[0]
    question = Question(plan.recipe, plan.target, catalog, Quotes(), first.region, first.priced_on)
    groups = (_market(plan, catalog), _regions(plan, question), _type(question, bound))
    return tuple(option for group in groups for option in group)


def _market(plan: Plan, catalog: Catalog) -> Iterator[str]:
    """Yield the other market, unless both were tried or EC2 does not sell the type in it."""
    markets = {candidate.market for candidate in plan.candidates}
    kind = catalog.types.get(plan.candidates[0].instance_type)
    for market in markets:
        other = _OTHER_MARKET.get(market, "on-demand")
        if other not in markets and (kind is None or other in kind.usage_classes):
            # A reservation has its own field next to the market.
            reserved = [] if market in _OTHER_MARKET else ["--set", "resources.reservation="]
            yield command("--set", f"resources.market={other}", *reserved)


def _regions(plan: Plan, question: Question) -> Iterator[str]:
    """Yield more regions that sell the types at a known price, cheapest first."""
    tried = dict.fromkeys(candidate.region for candidate in plan.candidates)
    # A saved plan may hold regions that its recipe no longer names.
    more = [name for name in offered_elsewhere(question) if name not in tried][:_MORE_REGIONS]
    if more:
        anywhere = ["--set", "resources.zones="] if question.recipe.resources.zones else []
        yield command("--set", f"resources.regions={','.join([*tried, *more])}", *anywhere)


def _type(question: Question, bound: Set[Quota]) -> Iterator[str]:
    """Yield the cheapest other type with at least as much GPU memory, preferably with the same number of GPUs."""
    kinds = [kind for kind in with_as_much_memory(question) if quota_of(kind.name, question.market) not in bound]
    if kinds:
        gpus = question.types[0].gpus
        yield command("--set", f"resources.instance_type={min(kinds, key=lambda kind: kind.gpus != gpus).name}")
