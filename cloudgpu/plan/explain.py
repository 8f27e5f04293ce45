"""Explain why each possible candidate was kept or excluded, grouped by rule."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import exclusions
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.candidates import weigh
from cloudgpu.plan.exclusions import Exclusion
from cloudgpu.plan.planner_input import Question

PLACES: Final = {
    "order": "hardware, regions and zones in the order of the recipe",
    "price": "the lowest hourly price of the whole cluster first",
    "speed": "the highest peak FP16 rate of a node first, then the faster network",
    "region": "regions in the order of the recipe, then hardware",
    "spot": "spot before on-demand",
}
"""`resources.prefer` -> description of the order."""


@dataclass(frozen=True)
class CandidateExplanation:
    """Whether one (type, region, zone, market) was kept, and why. An empty field covers all its values."""

    instance_type: str
    region: str
    """Empty: in every region."""
    zone: str
    """Empty: in every zone."""
    market: Market | None
    """None: in every market."""
    kept: bool
    place: int | None
    """Position in the order tried, from 1; None if excluded."""
    rule: str
    """The rule that excluded it, or that decided its position."""
    why: str
    fix: str = ""

    @property
    def label(self) -> str:
        """`p3dn.24xlarge in us-east-1c on-demand`, without the empty parts."""
        where = self.zone or self.region
        return " ".join(
            [self.instance_type, *(["in " + where] if where else []), *([self.market] if self.market else [])]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form. Null means all values."""
        return {name: value if value != "" else None for name, value in vars(self).items()} | {"why": self.why}


@dataclass(frozen=True)
class Group:
    """All explanations of one rule."""

    rule: str
    kept: bool
    verdicts: tuple[CandidateExplanation, ...]

    @property
    def count(self) -> int:
        """Number of explanations."""
        return len(self.verdicts)


def explain(question: Question) -> tuple[CandidateExplanation, ...]:
    """Explain every candidate in the order it will be tried, then everything that was excluded."""
    kept = tuple(_kept(question, weigh(question).candidates))
    excluded = tuple(verdict for kind in question.types for verdict in _of_type(question, kind))
    return (*kept, *excluded)


def grouped(verdicts: Iterable[CandidateExplanation]) -> tuple[Group, ...]:
    """Group by rule: kept candidates first, then the excluding rules in the order they applied."""
    groups: dict[tuple[str, bool], list[CandidateExplanation]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.rule, verdict.kept), []).append(verdict)
    return tuple(Group(rule, kept, tuple(members)) for (rule, kept), members in groups.items())


def _kept(question: Question, candidates: Iterable[Candidate]) -> Iterator[CandidateExplanation]:
    prefer = question.recipe.resources.prefer
    for place, candidate in enumerate(candidates, start=1):
        late = candidate.key in question.quotes.refused
        rule = "cool-down" if late else prefer
        why = "no capacity a short while ago: tried last" if late else PLACES[prefer]
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


def _of_type(question: Question, kind: InstanceType) -> Iterator[CandidateExplanation]:
    unfit = exclusions.of_type(question, kind)
    if unfit:
        yield from (_out(kind, "", "", exclusion) for exclusion in unfit)
        return
    for market in question.markets:
        if market not in question.markets_of(kind):
            why = Exclusion("market", f"AWS does not sell {kind.name} as {market}")
            yield _out(kind, "", "", why, market)
    for region in question.regions:
        yield from _of_region(question, kind, region)


def _of_region(question: Question, kind: InstanceType, region: str) -> Iterator[CandidateExplanation]:
    if region not in question.catalog.regions:
        yield _out(kind, region, "", Exclusion("region", f"unknown region {region}"))
        return
    unfit = exclusions.of_region(question, kind, region)
    if unfit:
        yield from (_out(kind, region, "", exclusion) for exclusion in unfit)
        return
    usable = exclusions.usable_zones(question, kind, region)
    for zone in question.zones_offering(kind, region):
        if zone not in usable:
            yield from (_out(kind, region, zone, exclusion) for exclusion in exclusions.of_zone(question, region, zone))


def _out(
    kind: InstanceType, region: str, zone: str, why: Exclusion, market: Market | None = None
) -> CandidateExplanation:
    return CandidateExplanation(
        kind.name, region, zone, market, kept=False, place=None, rule=why.check, why=why.message, fix=why.fix
    )
