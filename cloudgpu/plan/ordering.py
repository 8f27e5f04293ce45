"""The order in which candidates are tried: one sort key for each value of `resources.prefer`.

Candidates that recently had no capacity always come last. Candidates with equal keys keep the recipe's order: GPU
specs, then regions, then zones, then spot before on-demand.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Final

from cloudgpu.plan import costs
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.question import Question
from cloudgpu.recipe.schema import Prefer

SortKey = tuple[Decimal | int, ...]
"""The candidate with the lowest key is tried first."""


def in_order(question: Question, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sort candidates, given in the recipe's order, into the order in which they are tried."""
    sort_key = RULES[question.recipe.resources.prefer]
    refused = question.quotes.refused
    return tuple(sorted(candidates, key=lambda candidate: (candidate.key in refused, sort_key(question, candidate))))


def _by_order(_question: Question, _candidate: Candidate) -> SortKey:
    return ()


def _by_price(question: Question, candidate: Candidate) -> SortKey:
    """Compare hourly prices of the whole cluster, including disks, addresses and the NAT gateway."""
    return (costs.hourly_usd(candidate.costs(question.recipe.resources.nodes)),)


def _by_speed(question: Question, candidate: Candidate) -> SortKey:
    """Compare peak FP16 rates of a node, then network bandwidth. Unknown values count as 0."""
    kind = question.catalog.types[candidate.instance_type]
    rates = question.catalog.gpus[kind.gpu].rates
    rate = rates.fp16 or rates.fp32 or Decimal(0)
    return (-kind.gpus * rate, -(kind.network_gbps or Decimal(0)))


def _by_region(question: Question, candidate: Candidate) -> SortKey:
    return (question.regions.index(candidate.region),)


def _by_market(_question: Question, candidate: Candidate) -> SortKey:
    return (candidate.market != "spot",)


RULES: Final[Mapping[Prefer, Callable[[Question, Candidate], SortKey]]] = {
    "order": _by_order,
    "price": _by_price,
    "speed": _by_speed,
    "region": _by_region,
    "spot": _by_market,
}
