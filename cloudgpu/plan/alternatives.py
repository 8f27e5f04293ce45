"""What else could be had when a plan's candidates could not: pure suggestions, each one an option to type."""

from collections.abc import Iterator, Set

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.quotas import Quota, quota_of
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.question import Question
from cloudgpu.plan.substitutes import offered_elsewhere, with_as_much_memory
from cloudgpu.text import command

_MORE_REGIONS = 2
_OTHER_MARKET = {"on-demand": "spot", "spot": "on-demand"}


def alternatives(plan: Plan, catalog: Catalog, bound: Set[Quota] = frozenset()) -> tuple[str, ...]:
    """`--set ...` fragments: the other market, more regions, the nearest other type; none for a plan of nothing.

    No type is named that counts against one of the quotas that `bound`, or on which the recipe's software would not
    run.
    """
    if not plan.candidates:
        return ()
    first = plan.candidates[0]
    question = Question(plan.recipe, plan.target, catalog, Quotes(), first.region, first.priced_on)
    found = (_market(plan, catalog), _regions(plan, question), _type(question, bound))
    return tuple(one for each in found for one in each)


def _market(plan: Plan, catalog: Catalog) -> Iterator[str]:
    """Unless both were tried, or EC2 does not sell the first type so."""
    markets = {one.market for one in plan.candidates}
    kind = catalog.types.get(plan.candidates[0].instance_type)
    for market in markets:
        other = _OTHER_MARKET.get(market, "on-demand")
        if other not in markets and (kind is None or other in kind.usage_classes):
            # What is reserved is named beside its market.
            reserved = [] if market in _OTHER_MARKET else ["--set", "resources.reservation="]
            yield command("--set", f"resources.market={other}", *reserved)


def _regions(plan: Plan, question: Question) -> Iterator[str]:
    """Those in which the types are sold at a known price, the cheapest first."""
    tried = dict.fromkeys(one.region for one in plan.candidates)
    # A plan that was written down may hold more regions than its recipe names by now.
    more = [name for name in offered_elsewhere(question) if name not in tried][:_MORE_REGIONS]
    if more:
        anywhere = ["--set", "resources.zones="] if question.recipe.resources.zones else []
        yield command("--set", f"resources.regions={','.join([*tried, *more])}", *anywhere)


def _type(question: Question, bound: Set[Quota]) -> Iterator[str]:
    """The cheapest other type with as much GPU memory in the node; one with as many GPUs goes before others."""
    kinds = [kind for kind in with_as_much_memory(question) if quota_of(kind.name, question.market) not in bound]
    if kinds:
        gpus = question.types[0].gpus
        yield command("--set", f"resources.instance_type={min(kinds, key=lambda kind: kind.gpus != gpus).name}")
