"""The planner: one pure function from a resolved recipe and what is known of the world to a plan."""

from dataclasses import replace
from datetime import date, datetime

from cloudgpu.catalog import Catalog
from cloudgpu.plan.candidates import Field, weigh
from cloudgpu.plan.checks.registry import findings
from cloudgpu.plan.plan import Plan, Quotes, Target
from cloudgpu.plan.question import Question
from cloudgpu.plan.reaching import NO_WISH, NetworkWish
from cloudgpu.plan.reservations import lasting_s
from cloudgpu.recipe.digest import digest
from cloudgpu.recipe.schema import Recipe


def make(
    recipe: Recipe,
    *,
    target: Target,
    catalog: Catalog,
    quotes: Quotes,
    default_region: str,
    today: date,
    network: NetworkWish = NO_WISH,
) -> Plan:
    """Plan a resolved recipe. Whatever is wrong with the world is a finding, never an exception."""
    question = Question(recipe, target, catalog, quotes, default_region, today, network)
    field = weigh(question)
    plan = Plan(
        target=target,
        recipe=recipe,
        recipe_digest=digest(recipe),
        nodes=recipe.resources.nodes,
        ranks_per_node=_ranks_per_node(question, field),
        candidates=field.candidates,
        findings=(),
        expiry_s=_expiry_s(question),
        priced_live=_priced_live(question, field),
        starts_at=_starts_at(question),
    )
    return replace(plan, findings=findings(question, field, plan))


def _expiry_s(question: Question) -> int:
    """As the recipe says, or as long as what is reserved lasts."""
    asked, one, now = int(question.recipe.budget.expiry), question.quotes.reservation, question.quotes.asked_at
    return asked if one is None or now is None else lasting_s(one, now, asked)


def _starts_at(question: Question) -> datetime | None:
    """When the reserved capacity begins to be there, where that is yet to come."""
    one, now = question.quotes.reservation, question.quotes.asked_at
    if one is None or now is None or one.starts_at is None or one.starts_at <= now:
        return None
    return one.starts_at


def _ranks_per_node(question: Question, field: Field) -> int:
    """Of the first candidate; of the first type that was meant when none is left."""
    ranks = question.recipe.launch.ranks_per_node
    if ranks != "gpus":
        return ranks
    if field.candidates:
        return field.candidates[0].gpus_per_node
    return question.types[0].gpus if question.types else 1


def _priced_live(question: Question, field: Field) -> bool:
    """Whether every price was read from the cloud just now."""
    prices = question.quotes.prices
    return bool(field.candidates) and all(
        (one.instance_type, one.zone, one.market) in prices for one in field.candidates
    )
