"""Rules that exclude an instance type, region or zone. An exclusion is an error only if no candidate is left."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.memory_and_market import gpu_memory_short, sold_otherwise
from cloudgpu.plan.checks.quota_rules import quota_too_small, region_not_enabled
from cloudgpu.plan.checks.rule import Reason, RegionRule, TypeRule, ZoneRule, region_rule, type_rule, zone_rule
from cloudgpu.plan.checks.software_container import container_unfit
from cloudgpu.plan.checks.software_driver import cuda_unfit, driver_unfit, modules_unfit
from cloudgpu.plan.checks.software_torch import torch_unfit
from cloudgpu.plan.checks.storage_region import storage_elsewhere
from cloudgpu.plan.network_access import elastic_ips
from cloudgpu.plan.planner_input import Question
from cloudgpu.plan.reservations import unfit
from cloudgpu.plan.storage import near
from cloudgpu.text import command


@dataclass(frozen=True)
class Exclusion:
    """Why something was excluded. `fix` is a change that would include it or something similar."""

    check: str
    message: str
    fix: str = ""


def of_type(question: Question, kind: InstanceType) -> list[Exclusion]:
    """Return why this type cannot be used anywhere; empty if it can."""
    rules = (retired, *SOFTWARE_RULES) if kind.retired else TYPE_RULES
    return [Exclusion(rule.name, why.message, why.fix) for rule in rules for why in rule.find(question, kind)]


def of_region(question: Question, kind: InstanceType, region: str) -> list[Exclusion]:
    """Return why this type cannot be used in this region; empty if it can."""
    return [
        Exclusion(rule.name, why.message, why.fix) for rule in REGION_RULES for why in rule.find(question, kind, region)
    ]


def of_zone(question: Question, region: str, zone: str) -> list[Exclusion]:
    """Return why a zone that offers a type cannot be used; empty if it can."""
    return [
        Exclusion(rule.name, why.message, why.fix) for rule in ZONE_RULES for why in rule.find(question, region, zone)
    ]


def usable_zones(question: Question, kind: InstanceType, region: str) -> tuple[str, ...]:
    """Return the zones that offer the type and that no rule excludes, in the recipe's order if it lists zones."""
    offering = question.zones_offering(kind, region)
    usable = [
        zone for zone in offering if not any(True for rule in ZONE_RULES for _ in rule.find(question, region, zone))
    ]
    return tuple(zone for zone in dict.fromkeys(question.recipe.resources.zones or usable) if zone in usable)


@zone_rule("zone", "Local zones cost more, and zones that the recipe does not list are not used.")
def not_allowed(question: Question, region: str, zone: str) -> Iterator[Reason]:
    """Exclude local zones (`us-west-2-lax-1a`) and zones that the recipe does not list."""
    given = question.recipe.resources.zones
    if zone[:-1] != region:
        yield Reason(f"{zone} is a local zone outside the data centres of {region} and costs more")
    elif given and zone not in given:
        yield Reason(f"the recipe allows only {', '.join(given)}", command("--set", f"resources.zones={zone}"))


@zone_rule("reservation", "A reservation is in one zone and cannot be used from another.")
def not_reserved(question: Question, _region: str, zone: str) -> Iterator[Reason]:
    """Exclude every zone but that of the reservation."""
    held = question.quotes.reservation
    if held is not None and zone != held.zone:
        yield Reason(f"{held.id} is in {held.zone}")


@zone_rule("storage", "A volume or file system in one zone cannot be mounted from another.")
def not_near(question: Question, region: str, zone: str) -> Iterator[Reason]:
    """Exclude zones that cannot mount the recipe's storage."""
    if not near(question, region, zone):
        yield Reason(f"the recipe's storage is not in {zone}")


@type_rule("retired", "A retired type still has a price but cannot be launched.")
def retired(_question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Exclude retired types and suggest their successor."""
    if not kind.retired:
        return
    when = "" if kind.retired_on is None else f" on {kind.retired_on.isoformat()}"
    yield Reason(
        f"AWS retired {kind.name}{when}, and it can no longer be launched; its successor is {kind.replacement}",
        command("--set", f"resources.instance_type={kind.replacement}"),
    )


@type_rule("efa", "A recipe that requires EFA never falls back to TCP.")
def efa(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Exclude types without EFA if the recipe requires it."""
    if question.wants_efa(kind) and kind.efa_interfaces == 0:
        with_efa = [other for other in question.catalog.types.values() if other.efa_interfaces and not other.retired]
        same = sorted((other for other in with_efa if other.gpu == kind.gpu), key=lambda other: other.gpus)
        near = f"; {same[0].name} has it" if same else ""
        yield Reason(f"{kind.name} has no EFA{near}", "--set resources.network=auto")


@type_rule("reservation", "A reservation covers one type in one zone, with a limited number of free instances.")
def reserved(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Exclude types that do not match the recipe's reservation."""
    wanted, found = question.recipe.resources.reservation, question.quotes.reservation
    if wanted is None or not question.quotes.live:
        return
    if found is None:
        yield Reason(f"no reservation {wanted} found in {', '.join(question.known_regions)}")
    elif found.instance_type != kind.name:
        fix = command("--set", f"resources.instance_type={found.instance_type}")
        yield Reason(f"{wanted} is for {found.instance_type}, not for {kind.name}", fix)
    else:
        for why in unfit(found, question.market, question.recipe.resources.nodes):
            yield Reason(why)


@region_rule("address", "EC2 assigns no public address to nodes with several network interfaces.")
def unreachable(question: Question, kind: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions with too few Elastic IPs: nodes that cannot be reached would still cost money."""
    wanted = elastic_ips(question.public_address(kind, region), question.recipe.resources.nodes)
    free = question.free_addresses(region)
    if wanted > free:
        message = (
            f"{kind.name} needs {wanted} Elastic IPs in {region}, but the account can allocate only {free} more there"
        )
        yield Reason(message, "request a higher quota in Service Quotas (L-0263D0A3), or release unused ones")


@region_rule("reservation", "A reservation is in one zone, which the recipe must allow.")
def reserved_elsewhere(question: Question, kind: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions and zones other than the reservation's."""
    held = question.quotes.reservation
    if held is not None and question.zones_offering(kind, region) and not usable_zones(question, kind, region):
        yield Reason(f"{held.id} is in {held.zone}, which is not in {region} or not in the recipe's zones")


@region_rule("offered", "A type is sold in some regions only, and there in some zones only.")
def not_offered(question: Question, kind: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions that do not offer the type in any allowed zone."""
    offering = question.zones_offering(kind, region)
    if not offering:
        elsewhere = [name for name, zones in kind.zones.items() if zones and name != region]
        priced = [name for name in elsewhere if name in kind.on_demand_usd] or elsewhere
        fix = command("--set", f"resources.regions={','.join(sorted(priced))}") if priced else ""
        yield Reason(f"{kind.name} is not offered in {region}", fix)
    elif question.quotes.reservation is not None:
        return
    elif not usable_zones(question, kind, region) and _zones_here(question, region):
        wanted = ", ".join(_zones_here(question, region))
        yield Reason(
            f"{kind.name} is not offered in {wanted}; in {region} it is in {', '.join(offering)}",
            command("--set", f"resources.zones={','.join(offering)}"),
        )


def _zones_here(question: Question, region: str) -> tuple[str, ...]:
    return tuple(zone for zone in question.recipe.resources.zones if zone[:-1] == region)


@region_rule("price", "Without a price there is no worst-case cost, and cloudgpu never launches without one.")
def not_priced(question: Question, kind: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions in which the type has no known price."""
    if question.market == "capacity-block":
        return
    zones = usable_zones(question, kind, region)
    unquoted = [zone for zone in zones if (kind.name, zone, question.market) not in question.quotes.prices]
    if unquoted and region not in kind.on_demand_usd:
        fix = (
            command("--set", f"resources.regions={','.join(sorted(kind.on_demand_usd))}") if kind.on_demand_usd else ""
        )
        yield Reason(f"no price is known for {kind.name} in {region}", fix)


SOFTWARE_RULES: Final[tuple[TypeRule, ...]] = (container_unfit, torch_unfit, modules_unfit, driver_unfit, cuda_unfit)
"""Also applied to retired types: their successors may be unsuitable for the software for the same reason."""
TYPE_RULES: Final[tuple[TypeRule, ...]] = (
    retired,
    gpu_memory_short,
    sold_otherwise,
    efa,
    reserved,
    *SOFTWARE_RULES,
)
REGION_RULES: Final[tuple[RegionRule, ...]] = (
    region_not_enabled,
    reserved_elsewhere,
    storage_elsewhere,
    not_offered,
    not_priced,
    quota_too_small,
    unreachable,
)
ZONE_RULES: Final[tuple[ZoneRule, ...]] = (not_allowed, not_reserved, not_near)
