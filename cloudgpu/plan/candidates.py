"""From wishes to candidates, in failover order, and why each of the rest was left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import exclusions
from cloudgpu.plan.exclusions import Exclusion
from cloudgpu.plan.plan import Candidate
from cloudgpu.plan.question import Question


@dataclass(frozen=True)
class Field:
    """The candidates that are left, in order, and what was left out."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[Exclusion, ...]


def weigh(question: Question) -> Field:
    """Candidates in failover order: wishes, then regions, then zones; those that were just refused come last."""
    candidates: list[Candidate] = []
    left_out: list[Exclusion] = []
    for kind in question.types:
        unfit = exclusions.of_type(question, kind)
        left_out += unfit
        for region in () if unfit else question.known_regions:
            unfit_here = exclusions.of_region(question, kind, region)
            left_out += unfit_here
            candidates += () if unfit_here else _candidates(question, kind, region)
    candidates.sort(key=lambda one: (one.instance_type, one.zone, one.market) in question.quotes.refused)
    return Field(tuple(candidates), tuple(left_out))


def _candidates(question: Question, kind: InstanceType, region: str) -> Iterator[Candidate]:
    for zone in exclusions.usable_zones(question, kind, region):
        usd, priced_on = price(question, kind, region, zone)
        yield Candidate(
            instance_type=kind.name,
            region=region,
            zone=zone,
            market=question.market,
            node_hourly_usd=usd,
            priced_on=priced_on,
            gpu=kind.gpu,
            gpus_per_node=kind.gpus,
            gpu_memory_gib=kind.gpu_memory_gib,
            efa_interfaces=question.efa_of(kind),
            image=question.image(kind, region),
            image_parameter=question.image_parameter(kind),
            public_address=question.public_address(kind, region),
            reservation=question.recipe.resources.reservation or "",
        )


def price(question: Question, kind: InstanceType, region: str, zone: str) -> tuple[Decimal, date]:
    """USD an hour and the day it was read; `exclusions` has made sure that there is one.

    A spot price that nobody asked for today is the highest seen, or the on-demand price, which it cannot exceed. A
    Capacity Block is paid for in advance.
    """
    if question.market == "capacity-block":
        return Decimal(0), question.today
    quoted = question.quotes.prices.get((kind.name, zone, question.market))
    if quoted is not None:
        return quoted, question.today
    if question.market == "spot" and region in kind.spot_usd:
        return kind.spot_usd[region][1], kind.priced_on
    return kind.on_demand_usd[region], kind.priced_on
