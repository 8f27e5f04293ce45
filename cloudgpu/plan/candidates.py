"""Compute the candidates in failover order, and why the others are excluded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import costs, exclusions, storage
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.costs import items_besides_nodes, transfer_items
from cloudgpu.plan.exclusions import Exclusion
from cloudgpu.plan.planner_input import Question
from cloudgpu.recipe.schema import Prefer


@dataclass(frozen=True)
class Field:
    """The candidates in order, and the exclusions."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[Exclusion, ...]


def weigh(question: Question) -> Field:
    """Return the candidates in the order tried, and what the rules excluded."""
    candidates: list[Candidate] = []
    left_out: list[Exclusion] = []
    for kind in question.types:
        unfit = exclusions.of_type(question, kind)
        left_out += unfit
        for region in () if unfit else question.known_regions:
            unfit_here = exclusions.of_region(question, kind, region)
            left_out += unfit_here
            candidates += () if unfit_here else _candidates(question, kind, region)
    return Field(in_order(question, candidates), _by_rule(left_out))


def _by_rule(left_out: list[Exclusion]) -> tuple[Exclusion, ...]:
    """Group by rule in the order they applied, so that a recipe with many types gets a short error."""
    met = list(dict.fromkeys(exclusion.check for exclusion in left_out))
    return tuple(sorted(left_out, key=lambda exclusion: met.index(exclusion.check)))


def _candidates(question: Question, kind: InstanceType, region: str) -> Iterator[Candidate]:
    """Yield the candidates of a type in a region, which differ only in zone, market and price."""
    way = question.public_address(kind, region)
    resources = question.recipe.resources
    beside = (
        *items_besides_nodes(resources.nodes, int(resources.disk), region, way),
        *transfer_items(question.recipe, question.quotes.survey, region),
        *storage.made(question, region),
    )
    efa, image, parameter = question.efa_of(kind), question.image(kind, region), question.image_parameter(kind)
    for zone in exclusions.usable_zones(question, kind, region):
        for market in question.markets_of(kind):
            usd, priced_on, source = price(question, kind, region, zone, market)
            yield Candidate(
                instance_type=kind.name,
                region=region,
                zone=zone,
                market=market,
                node_hourly_usd=usd,
                priced_on=priced_on,
                gpu=kind.gpu,
                gpus_per_node=kind.gpus,
                gpu_memory_gib=kind.gpu_memory_gib,
                efa_interfaces=efa,
                image=image,
                image_parameter=parameter,
                public_address=way,
                reservation=resources.reservation or "",
                beside=beside,
                source=source,
            )


def price(question: Question, kind: InstanceType, region: str, zone: str, market: Market) -> tuple[Decimal, date, str]:
    """Return USD per hour, the date it was read, and its source. `exclusions` guarantees that a price exists.

    A spot price that nobody asked for today is the highest seen, or the on-demand price, which it cannot exceed. A
    Capacity Block is paid for in advance.
    """
    if market == "capacity-block":
        return Decimal(0), question.today, "paid for in advance"
    quoted = question.quotes.prices.get((kind.name, zone, market))
    if quoted is not None:
        return quoted, question.today, "the cloud, asked today"
    if market == "spot" and region in kind.spot_usd:
        return kind.spot_usd[region][1], kind.price_read_on(region), "the highest spot price seen"
    return kind.on_demand_usd[region], kind.price_read_on(region), kind.source


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
