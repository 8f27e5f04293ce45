"""Why a type, or a type in one region, cannot be a candidate. Fatal only when nothing else is left."""

from collections.abc import Iterator
from dataclasses import dataclass

from cloudgpu.catalog import InstanceType
from cloudgpu.plan import software
from cloudgpu.plan.question import Question
from cloudgpu.plan.reaching import elastic_ips
from cloudgpu.plan.reservations import unfit


@dataclass(frozen=True)
class Exclusion:
    """What was left out and why. `fix` is what would let it, or something near it, in."""

    check: str
    message: str
    fix: str = ""


def of_type(question: Question, kind: InstanceType) -> list[Exclusion]:
    """Why this type cannot be used anywhere; empty when it can."""
    if kind.retired:
        return [_retired(kind)]
    return [*_efa(question, kind), *_reserved(question, kind), *software.container_unfit(question, kind, Exclusion)]


def of_region(question: Question, kind: InstanceType, region: str) -> list[Exclusion]:
    """Why this type cannot be used in this region; empty when it can."""
    return [
        *_not_offered(question, kind, region),
        *_not_priced(question, kind, region),
        *_unreachable(question, kind, region),
    ]


def usable_zones(question: Question, kind: InstanceType, region: str) -> tuple[str, ...]:
    """Zones of a region that offer the type and that the recipe allows, in the recipe's order if it has one.

    Zones outside the region's own data centres (`us-west-2-lax-1a`) are left out: they cost more than the region.
    """
    offering = [zone for zone in question.zones_offering(kind, region) if zone[:-1] == region]
    allowed = question.recipe.resources.zones
    reserved = question.quotes.reservation
    if reserved is not None:
        offering = [zone for zone in offering if zone == reserved.zone]
    return tuple(zone for zone in dict.fromkeys(allowed or offering) if zone in offering)


def _retired(kind: InstanceType) -> Exclusion:
    when = "" if kind.retired_on is None else f" on {kind.retired_on.isoformat()}"
    return Exclusion(
        "retired",
        f"AWS retired {kind.name}{when}: nobody can launch it any more; the nearest that works is {kind.replacement}",
        f"--set resources.instance_type={kind.replacement}",
    )


def _efa(question: Question, kind: InstanceType) -> Iterator[Exclusion]:
    if question.wants_efa(kind) and kind.efa_interfaces == 0:
        with_efa = [other for other in question.catalog.types.values() if other.efa_interfaces and not other.retired]
        same = sorted((other for other in with_efa if other.gpu == kind.gpu), key=lambda other: other.gpus)
        near = f"; {same[0].name} has it" if same else ""
        yield Exclusion("efa", f"{kind.name} has no EFA{near}", "--set resources.network=auto")


def _reserved(question: Question, kind: InstanceType) -> Iterator[Exclusion]:
    """What is reserved is one type in one zone."""
    wanted, found = question.recipe.resources.reservation, question.quotes.reservation
    if wanted is None or not question.quotes.live:
        return
    if found is None:
        yield Exclusion("reservation", f"there is no reservation {wanted} in {', '.join(question.known_regions)}")
    elif found.instance_type != kind.name:
        fix = f"--set resources.instance_type={found.instance_type}"
        yield Exclusion("reservation", f"{wanted} is for {found.instance_type}, not for {kind.name}", fix)
    else:
        for why in unfit(found, question.market, question.recipe.resources.nodes):
            yield Exclusion("reservation", why)


def _unreachable(question: Question, kind: InstanceType, region: str) -> Iterator[Exclusion]:
    """Nodes that would come up and that nobody could reach cost money all the same."""
    wanted = elastic_ips(question.public_address(kind, region), question.recipe.resources.nodes)
    free = question.free_addresses(region)
    if wanted > free:
        message = f"{kind.name} needs {wanted} Elastic IPs in {region}, and the account may have {free} more there"
        yield Exclusion("address", message, "ask for more in Service Quotas (L-0263D0A3), or release unused ones")


def _not_offered(question: Question, kind: InstanceType, region: str) -> Iterator[Exclusion]:
    offering = question.zones_offering(kind, region)
    reserved = question.quotes.reservation
    if reserved is not None and offering and not usable_zones(question, kind, region):
        yield Exclusion("reservation", f"{reserved.id} lies in {reserved.zone}, not in {region} or not in a zone given")
    elif not offering:
        elsewhere = [name for name, zones in kind.zones.items() if zones and name != region]
        priced = [name for name in elsewhere if name in kind.on_demand_usd] or elsewhere
        fix = f"--set resources.regions={','.join(sorted(priced))}" if priced else ""
        yield Exclusion("offered", f"{kind.name} is not offered in {region}", fix)
    elif not usable_zones(question, kind, region) and _zones_here(question, region):
        wanted = ", ".join(_zones_here(question, region))
        yield Exclusion(
            "offered",
            f"{kind.name} is not offered in {wanted}; in {region} it is in {', '.join(offering)}",
            f"--set resources.zones={','.join(offering)}",
        )


def _zones_here(question: Question, region: str) -> tuple[str, ...]:
    return tuple(zone for zone in question.recipe.resources.zones if zone[:-1] == region)


def _not_priced(question: Question, kind: InstanceType, region: str) -> Iterator[Exclusion]:
    """Without a price there is no worst case, and nothing may be spent without one."""
    if question.market == "capacity-block":
        return
    zones = usable_zones(question, kind, region)
    unquoted = [zone for zone in zones if (kind.name, zone, question.market) not in question.quotes.prices]
    if unquoted and region not in kind.on_demand_usd:
        fix = f"--set resources.regions={','.join(sorted(kind.on_demand_usd))}" if kind.on_demand_usd else ""
        yield Exclusion("price", f"no price is known for {kind.name} in {region}", fix)
