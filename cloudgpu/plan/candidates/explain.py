"""Explain why each possible candidate was kept or excluded, and group the explanations by rule."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.candidates import exclusions
from cloudgpu.plan.candidates.candidate import Candidate, Market
from cloudgpu.plan.candidates.candidate_list import find_candidates
from cloudgpu.plan.candidates.exclusions import Exclusion
from cloudgpu.plan.planner_input import PlannerInput

ORDER_DESCRIPTIONS: Final = {
    "order": "hardware, regions and zones in the order of the recipe",
    "price": "the lowest hourly price of the whole cluster first",
    "speed": "the highest peak FP16 rate per node first, then the fastest network",
    "region": "regions in the order of the recipe, then hardware",
    "spot": "spot before on-demand",
}
"""`resources.prefer` -> description of the order."""


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
class Group:
    """All explanations that one rule produced."""

    rule: str
    kept: bool
    verdicts: tuple[CandidateExplanation, ...]

    @property
    def count(self) -> int:
        """Number of explanations."""
        return len(self.verdicts)


def explain(question: PlannerInput) -> tuple[CandidateExplanation, ...]:
    """Explain every decision: first the candidates, in the order in which they are tried, then the exclusions."""
    kept = tuple(_kept(question, find_candidates(question).candidates))
    excluded = tuple(verdict for instance_type in question.types for verdict in _of_type(question, instance_type))
    return (*kept, *excluded)


def group_by_rule(verdicts: Iterable[CandidateExplanation]) -> tuple[Group, ...]:
    """Group the explanations by rule, in the order in which the rules first occur."""
    groups: dict[tuple[str, bool], list[CandidateExplanation]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.rule, verdict.kept), []).append(verdict)
    return tuple(Group(rule, kept, tuple(members)) for (rule, kept), members in groups.items())


def _kept(question: PlannerInput, candidates: Iterable[Candidate]) -> Iterator[CandidateExplanation]:
    prefer = question.recipe.resources.prefer
    for place, candidate in enumerate(candidates, start=1):
        late = candidate.key in question.quotes.refused
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


def _of_type(question: PlannerInput, instance_type: InstanceType) -> Iterator[CandidateExplanation]:
    unfit = exclusions.type_exclusions(question, instance_type)
    if unfit:
        yield from (_excluded(instance_type, "", "", exclusion) for exclusion in unfit)
        return
    for market in question.markets:
        if market not in question.markets_of(instance_type):
            why = Exclusion("market", f"AWS does not offer {instance_type.name} as {market}")
            yield _excluded(instance_type, "", "", why, market)
    for region in question.regions:
        yield from _of_region(question, instance_type, region)


def _of_region(question: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[CandidateExplanation]:
    if region not in question.catalog.regions:
        yield _excluded(instance_type, region, "", Exclusion("region", f"unknown region {region}"))
        return
    unfit = exclusions.region_exclusions(question, instance_type, region)
    if unfit:
        yield from (_excluded(instance_type, region, "", exclusion) for exclusion in unfit)
        return
    usable = exclusions.usable_zones(question, instance_type, region)
    for zone in question.zones_offering(instance_type, region):
        if zone not in usable:
            yield from (
                _excluded(instance_type, region, zone, exclusion)
                for exclusion in exclusions.zone_exclusions(question, instance_type, region, zone)
            )


def _excluded(
    instance_type: InstanceType, region: str, zone: str, why: Exclusion, market: Market | None = None
) -> CandidateExplanation:
    return CandidateExplanation(
        instance_type.name, region, zone, market, kept=False, place=None, rule=why.check, why=why.message, fix=why.fix
    )
