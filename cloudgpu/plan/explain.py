"""Why every candidate that could be thought of was kept or thrown out: rule by rule, in groups that count. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import exclusions
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.candidates import weigh
from cloudgpu.plan.exclusions import Exclusion
from cloudgpu.plan.question import Question

PLACES: Final = {
    "order": "hardware, regions and zones in the order of the recipe",
    "price": "the lowest price of the whole cluster's hour first",
    "speed": "the highest peak FP16 rate of a node first, then the faster network",
    "region": "regions in the order of the recipe, then hardware",
    "spot": "spot before on-demand",
}
"""What decides the order, by `resources.prefer`."""


@dataclass(frozen=True)
class Verdict:
    """What became of one (type, region, zone, market), or of all of them that have an empty field in common."""

    instance_type: str
    region: str
    """Empty: in every region."""
    zone: str
    """Empty: in every zone."""
    market: Market | None
    """None: in every market."""
    kept: bool
    place: int | None
    """As which it is tried, from 1; None for what was thrown out."""
    rule: str
    """The rule that threw it out, or what decided its place."""
    why: str
    fix: str = ""

    @property
    def label(self) -> str:
        """`p3dn.24xlarge in us-east-1c on-demand`, as far as it has these."""
        where = self.zone or self.region
        return " ".join(
            [self.instance_type, *(["in " + where] if where else []), *([self.market] if self.market else [])]
        )

    def as_json(self) -> dict[str, Any]:
        """Its documented form; null stands for all of them."""
        return {name: value if value != "" else None for name, value in vars(self).items()} | {"why": self.why}


@dataclass(frozen=True)
class Group:
    """Verdicts of one rule."""

    rule: str
    kept: bool
    verdicts: tuple[Verdict, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.verdicts)


def explain(question: Question) -> tuple[Verdict, ...]:
    """One verdict for every candidate, in the order in which they are tried, then those of what was thrown out."""
    kept = tuple(_kept(question, weigh(question).candidates))
    thrown = tuple(one for kind in question.types for one in _of_type(question, kind))
    return (*kept, *thrown)


def grouped(verdicts: Iterable[Verdict]) -> tuple[Group, ...]:
    """By rule: what was kept first, then the rules in the order in which they were met."""
    found: dict[tuple[str, bool], list[Verdict]] = {}
    for one in verdicts:
        found.setdefault((one.rule, one.kept), []).append(one)
    return tuple(Group(rule, kept, tuple(those)) for (rule, kept), those in found.items())


def _kept(question: Question, candidates: Iterable[Candidate]) -> Iterator[Verdict]:
    """Those that every rule let pass."""
    prefer = question.recipe.resources.prefer
    for place, one in enumerate(candidates, start=1):
        late = one.key in question.quotes.refused
        rule = "cool-down" if late else prefer
        why = "no capacity a short while ago: tried last" if late else PLACES[prefer]
        yield Verdict(one.instance_type, one.region, one.zone, one.market, kept=True, place=place, rule=rule, why=why)


def _of_type(question: Question, kind: InstanceType) -> Iterator[Verdict]:
    unfit = exclusions.of_type(question, kind)
    if unfit:
        yield from (_out(kind, "", "", one) for one in unfit)
        return
    for market in question.markets:
        if market not in question.markets_of(kind):
            why = Exclusion("market", f"AWS does not sell {kind.name} as {market}")
            yield _out(kind, "", "", why, market)
    for region in question.regions:
        yield from _of_region(question, kind, region)


def _of_region(question: Question, kind: InstanceType, region: str) -> Iterator[Verdict]:
    if region not in question.catalog.regions:
        yield _out(kind, region, "", Exclusion("region", f"unknown region {region}"))
        return
    unfit = exclusions.of_region(question, kind, region)
    if unfit:
        yield from (_out(kind, region, "", one) for one in unfit)
        return
    usable = exclusions.usable_zones(question, kind, region)
    for zone in question.zones_offering(kind, region):
        if zone not in usable:
            yield from (_out(kind, region, zone, one) for one in exclusions.of_zone(question, region, zone))


def _out(kind: InstanceType, region: str, zone: str, why: Exclusion, market: Market | None = None) -> Verdict:
    return Verdict(
        kind.name, region, zone, market, kept=False, place=None, rule=why.check, why=why.message, fix=why.fix
    )
