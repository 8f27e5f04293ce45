"""The order in which candidates are tried: one rule for each thing that a recipe may prefer. Pure.

Whatever is preferred, candidates that were refused a moment ago come last, and those that are equal by the rule keep
the order of the recipe: wishes, then regions, then zones, then spot before on-demand.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from cloudgpu.plan import costs
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.question import Question
from cloudgpu.recipe.schema import Prefer

Place = tuple[Decimal | int, ...]
"""What candidates are compared by: the lowest is tried first."""


def in_order(question: Question, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates, given in the recipe's order, as they will be tried."""
    place = RULES[question.recipe.resources.prefer]
    refused = question.quotes.refused
    return tuple(sorted(candidates, key=lambda one: (one.key in refused, place(question, one))))


def _by_order(_question: Question, _one: Candidate) -> Place:
    return ()


def _by_price(question: Question, one: Candidate) -> Place:
    """By the whole gang's hour, with what goes with its nodes."""
    return (costs.hourly_usd(one.costs(question.recipe.resources.nodes)),)


def _by_speed(question: Question, one: Candidate) -> Place:
    """By the peak FP16 rate of a node, then by its network; what nobody knows counts as nothing."""
    kind = question.catalog.types[one.instance_type]
    rates = question.catalog.gpus[kind.gpu].rates
    rate = rates.fp16 or rates.fp32 or Decimal(0)
    return (-kind.gpus * rate, -(kind.network_gbps or Decimal(0)))


def _by_region(question: Question, one: Candidate) -> Place:
    return (question.regions.index(one.region),)


def _by_market(_question: Question, one: Candidate) -> Place:
    return (one.market != "spot",)


RULES: Final[Mapping[Prefer, Callable[[Question, Candidate], Place]]] = {
    "order": _by_order,
    "price": _by_price,
    "speed": _by_speed,
    "region": _by_region,
    "spot": _by_market,
}
