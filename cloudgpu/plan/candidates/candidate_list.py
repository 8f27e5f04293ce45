"""Compute the candidates in failover order, and the exclusions with their reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import costs, storage
from cloudgpu.plan.candidates import exclusions
from cloudgpu.plan.candidates.candidate import Candidate, Market
from cloudgpu.plan.candidates.exclusions import Exclusion
from cloudgpu.plan.costs import items_besides_nodes, transfer_items
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Prefer


@dataclass(frozen=True)
class CandidateList:
    """The candidates, in the order in which they are tried, and the exclusions."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[Exclusion, ...]


def find_candidates(question: PlannerInput) -> CandidateList:
    """Find the candidates, in the order in which they are tried, and the exclusions."""
    candidates: list[Candidate] = []
    left_out: list[Exclusion] = []
    for instance_type in question.types:
        unfit = exclusions.type_exclusions(question, instance_type)
        left_out += unfit
        for region in () if unfit else question.known_regions:
            unfit_here = exclusions.region_exclusions(question, instance_type, region)
            left_out += unfit_here
            candidates += () if unfit_here else _candidates(question, instance_type, region)
    return CandidateList(sort_candidates(question, candidates), _by_rule(left_out))


def _by_rule(left_out: list[Exclusion]) -> tuple[Exclusion, ...]:
    """Return the exclusions grouped by rule, in the order in which the rules first applied."""
    rules = list(dict.fromkeys(exclusion.check for exclusion in left_out))
    return tuple(sorted(left_out, key=lambda exclusion: rules.index(exclusion.check)))


def _candidates(question: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Candidate]:
    """Yield the candidates of a type in a region, which differ only in zone, market and price."""
    public_address = question.public_address(instance_type, region)
    resources = question.recipe.resources
    beside = (
        *items_besides_nodes(resources.nodes, int(resources.disk), region, public_address),
        *transfer_items(question.recipe, question.quotes.survey, region),
        *storage.new_storage_costs(question, region),
    )
    efa, image, parameter = (
        question.efa_of(instance_type),
        question.image(instance_type, region),
        question.image_parameter(instance_type),
    )
    for zone in exclusions.usable_zones(question, instance_type, region):
        decision = question.subnet(instance_type, region, zone)
        chosen = None if decision is None else decision.subnet
        for market in question.markets_of(instance_type):
            usd, priced_on, source = candidate_price(question, instance_type, region, zone, market)
            yield Candidate(
                instance_type=instance_type.name,
                region=region,
                zone=zone,
                market=market,
                node_hourly_usd=usd,
                priced_on=priced_on,
                gpu=instance_type.gpu,
                gpus_per_node=instance_type.gpus,
                gpu_memory_gib=instance_type.gpu_memory_gib,
                efa_interfaces=efa,
                image=image,
                image_parameter=parameter,
                public_address=public_address,
                reservation=resources.reservation or "",
                subnet="" if chosen is None else chosen.id,
                subnet_why="" if chosen is None else chosen.description,
                beside=beside,
                source=source,
            )


def candidate_price(
    question: PlannerInput, instance_type: InstanceType, region: str, zone: str, market: Market
) -> tuple[Decimal, date, str]:
    """Return a node's price in USD per hour, the date on which the price was read, and its source.

    The exclusion rules guarantee that a price exists. Without a current quote, the price of a spot candidate is the
    highest observed spot price or, if there is none, the on-demand price, which spot prices cannot exceed. A Capacity
    Block costs 0 because it is paid in advance.
    """
    if market == "capacity-block":
        return Decimal(0), question.today, "paid in advance"
    quoted = question.quotes.prices.get((instance_type.name, zone, market))
    if quoted is not None:
        return quoted, question.today, "read from the cloud today"
    if market == "spot" and region in instance_type.spot_usd:
        return instance_type.spot_usd[region][1], instance_type.price_read_on(region), "highest observed spot price"
    return instance_type.on_demand_usd[region], instance_type.price_read_on(region), instance_type.source


SortKey = tuple[Decimal | int, ...]
"""Sort key of a candidate; the lowest key is tried first."""


def sort_candidates(question: PlannerInput, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sort candidates from the recipe's order into the order in which they are tried.

    Candidates that recently had no capacity come last.
    """
    sort_key = RULES[question.recipe.resources.prefer]
    refused = question.quotes.refused
    return tuple(sorted(candidates, key=lambda candidate: (candidate.key in refused, sort_key(question, candidate))))


def _by_order(_question: PlannerInput, _candidate: Candidate) -> SortKey:
    return ()


def _by_price(question: PlannerInput, candidate: Candidate) -> SortKey:
    """Return the hourly price of the whole cluster, including disks, addresses and the NAT gateway."""
    return (costs.hourly_usd(candidate.costs(question.recipe.resources.nodes)),)


def _by_speed(question: PlannerInput, candidate: Candidate) -> SortKey:
    """Return the negated peak FP16 rate and the negated network bandwidth of a node. Unknown values count as 0."""
    instance_type = question.catalog.types[candidate.instance_type]
    rates = question.catalog.gpus[instance_type.gpu].rates
    rate = rates.fp16 or rates.fp32 or Decimal(0)
    return (-instance_type.gpus * rate, -(instance_type.network_gbps or Decimal(0)))


def _by_region(question: PlannerInput, candidate: Candidate) -> SortKey:
    return (question.regions.index(candidate.region),)


def _by_market(_question: PlannerInput, candidate: Candidate) -> SortKey:
    return (candidate.market != "spot",)


RULES: Final[Mapping[Prefer, Callable[[PlannerInput, Candidate], SortKey]]] = {
    "order": _by_order,
    "price": _by_price,
    "speed": _by_speed,
    "region": _by_region,
    "spot": _by_market,
}
