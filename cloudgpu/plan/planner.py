"""The planner: one pure function from a resolved recipe and what is known of the world to a plan."""

from dataclasses import replace
from datetime import date, datetime
from decimal import ROUND_CEILING, Decimal

from cloudgpu.catalog import Catalog
from cloudgpu.plan import host_sets
from cloudgpu.plan.candidates import Field, weigh
from cloudgpu.plan.checks.registry import findings
from cloudgpu.plan.costs import total_usd
from cloudgpu.plan.nearest import with_remedies
from cloudgpu.plan.plan import Expected, Plan, Quotes, Target
from cloudgpu.plan.question import Question
from cloudgpu.plan.reaching import NO_REQUEST, NetworkRequest
from cloudgpu.plan.reservations import lasting_s
from cloudgpu.plan.uses import Use, use_of
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
    network: NetworkRequest = NO_REQUEST,
) -> Plan:
    """Plan a resolved recipe. Whatever is wrong with the world is a finding, never an exception."""
    return answer(Question(recipe, target, catalog, quotes, default_region, today, network))


def answer(question: Question) -> Plan:
    """The plan of a question, with what would work instead where it is refused."""
    return with_remedies(planned(question), question, planned)


def planned(question: Question) -> Plan:
    """The plan with its findings, before anybody has looked for what would work instead."""
    recipe = question.recipe
    field = weigh(question) if question.hosts is None else host_sets.weigh(question)
    plan = Plan(
        target=question.target,
        recipe=recipe,
        recipe_digest=digest(recipe),
        nodes=recipe.resources.nodes,
        ranks_per_node=_ranks_per_node(question, field),
        candidates=field.candidates,
        findings=(),
        expiry_s=_expiry_s(question),
        priced_live=_priced_live(question, field),
        starts_at=_starts_at(question),
        expected=_expected(recipe, field),
        uses=_uses(question, field),
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
    ranks = question.recipe.launch.ranks
    if ranks != "gpus":
        return ranks
    if field.candidates:
        return field.candidates[0].gpus_per_node
    return question.types[0].gpus if question.types else 1


def _priced_live(question: Question, field: Field) -> bool:
    """Whether every price was read from the cloud just now."""
    prices = question.quotes.prices
    return bool(field.candidates) and all(one.key in prices for one in field.candidates)


def _expected(recipe: Recipe, field: Field) -> Expected | None:
    """As fast as the reference, at the candidate that is tried first."""
    work = recipe.work
    metric = recipe.metrics.get(work.metric) if work is not None else None
    reference = metric.reference if metric is not None else None
    if work is None or metric is None or reference is None or not field.candidates:
        return None
    rate = Decimal(str(reference.value)).normalize()
    seconds = int((work.amount / rate).to_integral_value(ROUND_CEILING))
    usd = total_usd(field.candidates[0].costs(recipe.resources.nodes), seconds)
    return Expected(work.metric, work.amount, rate, metric.unit, reference.on, seconds, usd)


def _uses(question: Question, field: Field) -> tuple[Use, ...]:
    """One for each type; where its image differs between regions, that of the region tried first."""
    if question.hosts is not None:
        return ()
    first = {one.instance_type: one for one in reversed(field.candidates)}
    names = dict.fromkeys(one.instance_type for one in field.candidates)
    chosen = [first[name] for name in names]
    found = tuple(
        use_of(question.recipe, one.instance_type, question.catalog.gpus[one.gpu], one.image, one.image_parameter)
        for one in chosen
    )
    # Nothing of the network is simulated, so its settings are left out.
    return tuple(replace(one, environment=()) for one in found) if question.rehearsed else found
