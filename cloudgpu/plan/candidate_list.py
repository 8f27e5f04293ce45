"""Compute the candidates in failover order, and explain why each possible candidate was kept or excluded."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import costs, exclusions, storage
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.costs import items_besides_nodes, transfer_items
from cloudgpu.plan.exclusions import Exclusion
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Prefer

SortKey = tuple[Decimal | int, ...]
"""Sort key of a candidate; the lowest key is tried first."""
ORDER_DESCRIPTIONS: Final = {
    "order": "hardware, regions and zones in the order of the recipe",
    "price": "the lowest hourly price of the whole cluster first",
    "speed": "the highest peak FP16 rate per node first, then the fastest network",
    "region": "regions in the order of the recipe, then hardware",
    "spot": "spot before on-demand",
}
"""`resources.prefer` -> description of the order."""


@dataclass(frozen=True)
class CandidateList:
    """The candidates, in the order in which they are tried, and the exclusions."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[Exclusion, ...]


def find_candidates(inputs: PlannerInput) -> CandidateList:
    """Find the candidates, in the order in which they are tried, and the exclusions."""
    candidates: list[Candidate] = []
    left_out: list[Exclusion] = []
    for instance_type in inputs.types:
        unfit = exclusions.type_exclusions(inputs, instance_type)
        left_out += unfit
        for region in () if unfit else inputs.known_regions:
            unfit_here = exclusions.region_exclusions(inputs, instance_type, region)
            left_out += unfit_here
            candidates += () if unfit_here else _candidates(inputs, instance_type, region)
    return CandidateList(sort_candidates(inputs, candidates), _by_rule(left_out))


def _by_rule(left_out: list[Exclusion]) -> tuple[Exclusion, ...]:
    """Return the exclusions grouped by rule, in the order in which the rules first applied."""
    rules = list(dict.fromkeys(exclusion.check for exclusion in left_out))
    return tuple(sorted(left_out, key=lambda exclusion: rules.index(exclusion.check)))


def _candidates(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Candidate]:
    """Yield the candidates of a type in a region, which differ only in zone, market and price."""
    public_address = inputs.public_address(instance_type, region)
    resources = inputs.recipe.resources
    other_items = (
        *items_besides_nodes(resources.nodes, int(resources.disk), region, public_address),
        *transfer_items(inputs.recipe, inputs.quotes.lookups, region),
        *storage.new_storage_costs(inputs, region),
    )
    efa, image, parameter = (
        inputs.efa_of(instance_type),
        inputs.image(instance_type, region),
        inputs.image_parameter(instance_type),
    )
    for zone in exclusions.usable_zones(inputs, instance_type, region):
        decision = inputs.subnet(instance_type, region, zone)
        chosen = None if decision is None else decision.subnet
        for market in inputs.markets_of(instance_type):
            usd, priced_on, source = candidate_price(inputs, instance_type, region, zone, market)
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
                beside=other_items,
                source=source,
            )


def candidate_price(
    inputs: PlannerInput, instance_type: InstanceType, region: str, zone: str, market: Market
) -> tuple[Decimal, date, str]:
    """Return a node's price in USD per hour, the date on which the price was read, and its source.

    The exclusion rules guarantee that a price exists. Without a current quote, the price of a spot candidate is the
    highest observed spot price or, if there is none, the on-demand price, which spot prices cannot exceed. A Capacity
    Block costs 0 because it is paid in advance.
    """
    if market == "capacity-block":
        return Decimal(0), inputs.today, "paid in advance"
    quoted = inputs.quotes.prices.get((instance_type.name, zone, market))
    if quoted is not None:
        return quoted, inputs.today, "read from the cloud today"
    if market == "spot" and region in instance_type.spot_usd:
        return instance_type.spot_usd[region][1], instance_type.price_read_on(region), "highest observed spot price"
    return instance_type.on_demand_usd[region], instance_type.price_read_on(region), instance_type.source


def sort_candidates(inputs: PlannerInput, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Sort candidates from the recipe's order into the order in which they are tried.

    Candidates that recently had no capacity come last.
    """
    sort_key = SORT_RULES[inputs.recipe.resources.prefer]
    refused = inputs.quotes.refused
    return tuple(sorted(candidates, key=lambda candidate: (candidate.key in refused, sort_key(inputs, candidate))))


def _by_order(_inputs: PlannerInput, _candidate: Candidate) -> SortKey:
    return ()


def _by_price(inputs: PlannerInput, candidate: Candidate) -> SortKey:
    """Return the hourly price of the whole cluster, including disks, addresses and the NAT gateway."""
    return (costs.hourly_usd(candidate.costs(inputs.recipe.resources.nodes)),)


def _by_speed(inputs: PlannerInput, candidate: Candidate) -> SortKey:
    """Return the negated peak FP16 rate and the negated network bandwidth of a node. Unknown values count as 0."""
    instance_type = inputs.catalog.types[candidate.instance_type]
    rates = inputs.catalog.gpus[instance_type.gpu].rates
    rate = rates.fp16 or rates.fp32 or Decimal(0)
    return (-instance_type.gpus * rate, -(instance_type.network_gbps or Decimal(0)))


def _by_region(inputs: PlannerInput, candidate: Candidate) -> SortKey:
    return (inputs.regions.index(candidate.region),)


def _by_market(_inputs: PlannerInput, candidate: Candidate) -> SortKey:
    return (candidate.market != "spot",)


SORT_RULES: Final[Mapping[Prefer, Callable[[PlannerInput, Candidate], SortKey]]] = {
    "order": _by_order,
    "price": _by_price,
    "speed": _by_speed,
    "region": _by_region,
    "spot": _by_market,
}


@dataclass(frozen=True)
class CandidateExplanation:
    """The decision to keep or exclude a type in one region, zone and market, with its reason."""

    instance_type: str
    region: str
    """Region; empty if the decision applies to every region."""
    zone: str
    """Zone; empty if the decision applies to every zone."""
    market: Market | None
    """Market; None if the decision applies to every market."""
    kept: bool
    place: int | None
    """Position in the order in which candidates are tried, from 1; None if excluded."""
    rule: str
    """Rule that excluded the candidate or determined its position."""
    why: str
    fix: str = ""

    @property
    def label(self) -> str:
        """Name for messages, such as `p3dn.24xlarge in us-east-1c on-demand`, without empty fields."""
        where = self.zone or self.region
        return " ".join(
            [self.instance_type, *(["in " + where] if where else []), *([self.market] if self.market else [])]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form. A null region, zone or market means all regions, zones or markets."""
        return {name: value if value != "" else None for name, value in vars(self).items()} | {"why": self.why}


@dataclass(frozen=True)
class ExplanationGroup:
    """All explanations that one rule produced."""

    rule: str
    kept: bool
    explanations: tuple[CandidateExplanation, ...]

    @property
    def count(self) -> int:
        """Number of explanations."""
        return len(self.explanations)


def explain_candidates(inputs: PlannerInput) -> tuple[CandidateExplanation, ...]:
    """Explain every decision: first the candidates, in the order in which they are tried, then the exclusions."""
    kept = tuple(_explain_candidates(inputs, find_candidates(inputs).candidates))
    excluded = tuple(
        explanation for instance_type in inputs.types for explanation in _explain_type(inputs, instance_type)
    )
    return (*kept, *excluded)


def group_by_rule(explanations: Iterable[CandidateExplanation]) -> tuple[ExplanationGroup, ...]:
    """Group the explanations by rule, in the order in which the rules first occur."""
    groups: dict[tuple[str, bool], list[CandidateExplanation]] = {}
    for explanation in explanations:
        groups.setdefault((explanation.rule, explanation.kept), []).append(explanation)
    return tuple(ExplanationGroup(rule, kept, tuple(members)) for (rule, kept), members in groups.items())


def _explain_candidates(inputs: PlannerInput, candidates: Iterable[Candidate]) -> Iterator[CandidateExplanation]:
    prefer = inputs.recipe.resources.prefer
    for place, candidate in enumerate(candidates, start=1):
        late = candidate.key in inputs.quotes.refused
        rule = "cool-down" if late else prefer
        why = "no capacity recently: tried last" if late else ORDER_DESCRIPTIONS[prefer]
        yield CandidateExplanation(
            candidate.instance_type,
            candidate.region,
            candidate.zone,
            candidate.market,
            kept=True,
            place=place,
            rule=rule,
            why=why,
        )


def _explain_type(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[CandidateExplanation]:
    unfit = exclusions.type_exclusions(inputs, instance_type)
    if unfit:
        yield from (_explain_exclusion(instance_type, "", "", exclusion) for exclusion in unfit)
        return
    for market in inputs.markets:
        if market not in inputs.markets_of(instance_type):
            why = Exclusion("market", f"AWS does not offer {instance_type.name} as {market}")
            yield _explain_exclusion(instance_type, "", "", why, market)
    for region in inputs.regions:
        yield from _explain_region(inputs, instance_type, region)


def _explain_region(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[CandidateExplanation]:
    if region not in inputs.catalog.regions:
        yield _explain_exclusion(instance_type, region, "", Exclusion("region", f"unknown region {region}"))
        return
    unfit = exclusions.region_exclusions(inputs, instance_type, region)
    if unfit:
        yield from (_explain_exclusion(instance_type, region, "", exclusion) for exclusion in unfit)
        return
    usable = exclusions.usable_zones(inputs, instance_type, region)
    for zone in inputs.zones_offering(instance_type, region):
        if zone not in usable:
            yield from (
                _explain_exclusion(instance_type, region, zone, exclusion)
                for exclusion in exclusions.zone_exclusions(inputs, instance_type, region, zone)
            )


def _explain_exclusion(
    instance_type: InstanceType, region: str, zone: str, why: Exclusion, market: Market | None = None
) -> CandidateExplanation:
    return CandidateExplanation(
        instance_type.name, region, zone, market, kept=False, place=None, rule=why.check, why=why.message, fix=why.fix
    )
