"""Rules that exclude an instance type, region or zone. An exclusion is an error only if no candidate is left."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.plan.capacity import is_reserved, unsuitable_reasons
from cloudgpu.plan.checks.container_and_driver import container_unfit, cuda_unfit, driver_unfit, modules_unfit
from cloudgpu.plan.checks.rule import OfRegion, OfType, OfZone, Reason, Rule, rule
from cloudgpu.plan.checks.software_torch import torch_unfit
from cloudgpu.plan.network_access import GATEWAYS, elastic_ips
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import can_mount, storage_in_other_region
from cloudgpu.plan.subnets import network_problem
from cloudgpu.text import command, plural

_REASONS: Final = 2
"""Maximum number of zones in the reason why a region has no suitable subnet."""
_ARCHITECTURE: Final = "x86_64"
"""Architecture of every type in the catalog that can be launched."""
_OTHER_IMAGE: Final = "set resources.image to another image, or omit it to use the default image of the GPU"
SOFTWARE_RULES: Final[tuple[Rule[OfType], ...]] = (
    container_unfit,
    torch_unfit,
    modules_unfit,
    driver_unfit,
    cuda_unfit,
)
"""Rules that also apply to retired types, because their successor may fail for the same reason."""


@rule("gpu-memory", "A model that does not fit into GPU memory fails at its first step, after the nodes are launched.")
def gpu_memory_short(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types with less memory per GPU than the recipe requires."""
    needed = inputs.recipe.resources.gpu_memory
    if needed is not None and instance_type.gpu_memory_gib < needed:
        alternative = _cheapest_with(inputs, instance_type, Decimal(needed))
        memory = f"{instance_type.name} has {instance_type.gpu_memory_gib:f} GiB on each {instance_type.gpu}"
        yield Reason(
            f"{memory}, but the recipe requires {int(needed)} GiB",
            command("--set", f"resources.instance_type={alternative}") if alternative else "",
        )


@rule("market", "A type that AWS does not offer in the requested market fails in every zone.")
def not_sold_in_market(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types that AWS does not offer in the requested market."""
    market = inputs.market
    if not inputs.markets_of(instance_type):
        offered = f", only as {' or '.join(instance_type.usage_classes)}" if instance_type.usage_classes else ""
        requested = " or ".join(inputs.markets)
        yield Reason(
            f"AWS does not offer {instance_type.name} as {requested}{offered}", _other_market(instance_type, market)
        )
    elif (
        inputs.markets == ("on-demand",)
        and not instance_type.on_demand_usd
        and "capacity-block" in instance_type.usage_classes
    ):
        message = f"{instance_type.name} has no known on-demand price, but AWS offers it in Capacity Blocks"
        spot = ", or --set resources.market=spot" if instance_type.spot_usd else ""
        block = "buy a block, and set resources.market to capacity-block and resources.reservation to its ID"
        yield Reason(message, f"{block}{spot}")


def _other_market(instance_type: InstanceType, market: str) -> str:
    """Return the option for another market. Reserved markets are not suggested because they need a reservation ID."""
    others = (usage_class for usage_class in instance_type.usage_classes if usage_class != market)
    other = next((usage_class for usage_class in others if not is_reserved(usage_class)), "")
    return command("--set", f"resources.market={other}") if other else ""


def _cheapest_with(inputs: PlannerInput, instance_type: InstanceType, memory_gib: Decimal) -> str:
    """Return the cheapest offered type with at least as many GPUs and this much memory per GPU; empty if none."""
    offers = [
        (other.on_demand_usd[region], other.name)
        for other in inputs.catalog.types.values()
        if other.gpus >= instance_type.gpus and other.gpu_memory_gib >= memory_gib
        if not other.retired and other.provider == "aws"
        for region in inputs.known_regions
        if region in other.on_demand_usd and inputs.zones_offering(other, region)
    ]
    return min(offers)[1] if offers else ""


@rule("region-enabled", "Regions that the account has not enabled reject every call.")
def region_not_enabled(inputs: PlannerInput, _instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions that the account has not enabled."""
    enabled = inputs.quotes.lookups.enabled_regions
    if enabled is not None and region not in enabled:
        enable = command("aws", "account", "enable-region", "--region-name", region)
        fix = f"`{enable}`, or choose another region"
        yield Reason(f"{region} is not enabled for this account", fix)


@rule("quota", "A cluster above the account's quota fails in every zone of the region.")
def quota_too_small(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude types that need more vCPUs than the quota allows. `checks.quota` also counts running instances."""
    if is_reserved(inputs.market):
        # A reservation already counts against the quota; a Capacity Block does not count at all.
        return
    nodes, needed = inputs.recipe.resources.nodes, inputs.recipe.resources.nodes * instance_type.vcpus
    quotas = [quota_of(instance_type.name, market) for market in inputs.markets_of(instance_type)]
    headrooms = [(quota, inputs.quotes.quotas.get((region, quota.key))) for quota in quotas]
    too_small = [
        (quota, headroom) for quota, headroom in headrooms if headroom is not None and needed > headroom.limit_vcpus
    ]
    if len(too_small) < len(headrooms):
        return
    for quota, headroom in too_small:
        limit, since = headroom.limit_vcpus, headroom.since(live=inputs.quotes.live)
        fewer = (
            f"{command('--set', f'resources.nodes={limit // instance_type.vcpus}')}, or "
            if limit >= instance_type.vcpus
            else ""
        )
        message = (
            f"{nodes} x {instance_type.name} need {needed} vCPUs in {region}, but {quota} allow only {limit}{since}"
        )
        request = quota.increase_command(region, needed)
        how = f"with `{request}`" if request else f"at {quota.console(region)}"
        yield Reason(message, f"{fewer}request a quota of {needed} vCPUs {how}")


@dataclass(frozen=True)
class Exclusion:
    """An exclusion by the rule `check`. `fix` is a change that would allow the excluded item or a similar one."""

    check: str
    message: str
    fix: str = ""


def type_exclusions(inputs: PlannerInput, instance_type: InstanceType) -> list[Exclusion]:
    """Return the exclusions of a type that apply in every region; empty if there are none."""
    rules = (retired, *SOFTWARE_RULES) if instance_type.retired else TYPE_RULES
    return [Exclusion(rule.name, why.message, why.fix) for rule in rules for why in rule.find(inputs, instance_type)]


def region_exclusions(inputs: PlannerInput, instance_type: InstanceType, region: str) -> list[Exclusion]:
    """Return the exclusions of a type that apply in this region; empty if there are none."""
    return [
        Exclusion(rule.name, why.message, why.fix)
        for rule in REGION_RULES
        for why in rule.find(inputs, instance_type, region)
    ]


def zone_exclusions(inputs: PlannerInput, instance_type: InstanceType, region: str, zone: str) -> list[Exclusion]:
    """Return the exclusions of a type in a zone; empty if there are none."""
    return [
        Exclusion(rule.name, why.message, why.fix)
        for rule in ZONE_RULES
        for why in rule.find(inputs, instance_type, region, zone)
    ]


def usable_zones(inputs: PlannerInput, instance_type: InstanceType, region: str) -> tuple[str, ...]:
    """Return the zones that offer the type and that no rule excludes, in the order of the recipe's zones, if any."""
    offering = inputs.zones_offering(instance_type, region)
    usable = [
        zone
        for zone in offering
        if not any(True for rule in ZONE_RULES for _ in rule.find(inputs, instance_type, region, zone))
    ]
    return tuple(zone for zone in dict.fromkeys(inputs.recipe.resources.zones or usable) if zone in usable)


@rule("zone", "Local zones cost more, and zones that the recipe does not list are not used.")
def not_allowed(inputs: PlannerInput, _type: InstanceType, region: str, zone: str) -> Iterator[Reason]:
    """Exclude local zones (`us-west-2-lax-1a`) and zones that the recipe does not list."""
    allowed = inputs.recipe.resources.zones
    if zone[:-1] != region:
        yield Reason(f"{zone} is a local zone outside the data centers of {region} and costs more")
    elif allowed and zone not in allowed:
        yield Reason(f"the recipe allows only {', '.join(allowed)}", command("--set", f"resources.zones={zone}"))


@rule("reservation", "A reservation is in one zone and cannot be used from another.")
def not_reserved(inputs: PlannerInput, _type: InstanceType, _region: str, zone: str) -> Iterator[Reason]:
    """Exclude every zone except the reservation's zone."""
    reservation = inputs.quotes.reservation
    if reservation is not None and zone != reservation.zone:
        yield Reason(f"{reservation.id} is in {reservation.zone}")


@rule("storage", "A volume or file system in one zone cannot be mounted from another.")
def storage_not_mountable(inputs: PlannerInput, _type: InstanceType, region: str, zone: str) -> Iterator[Reason]:
    """Exclude zones that cannot mount the recipe's storage."""
    if not can_mount(inputs, region, zone):
        yield Reason(f"the recipe's storage is not in {zone}")


@rule("subnet", "Nodes that cannot be reached in their subnet still cost money.")
def no_subnet(inputs: PlannerInput, instance_type: InstanceType, region: str, zone: str) -> Iterator[Reason]:
    """Exclude zones without a subnet in which the nodes can be reached as planned.

    A subnet with too few free addresses at present is used only if no other zone has enough, because a cluster that the
    run reuses may occupy them.
    """
    decision = inputs.subnet(instance_type, region, zone)
    if decision is None:
        return
    if decision.subnet is None or (decision.short and _has_zone_with_free_addresses(inputs, instance_type, region)):
        yield Reason(decision.why, decision.fix)


def _has_zone_with_free_addresses(inputs: PlannerInput, instance_type: InstanceType, region: str) -> bool:
    """Return True if a zone that could be used has a subnet with enough free addresses."""
    zones = _zones_except_by_subnet(inputs, instance_type, region)
    decisions = (inputs.subnet(instance_type, region, zone) for zone in zones)
    return any(found is not None and found.subnet is not None and not found.short for found in decisions)


def _zones_except_by_subnet(inputs: PlannerInput, instance_type: InstanceType, region: str) -> list[str]:
    """Return the zones that offer the type and that no rule except `no_subnet` excludes."""
    others = [rule for rule in ZONE_RULES if rule is not no_subnet]
    return [
        zone
        for zone in inputs.zones_offering(instance_type, region)
        if not any(True for rule in others for _ in rule.find(inputs, instance_type, region, zone))
    ]


@rule("retired", "A retired type still has a price but cannot be launched.")
def retired(_inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude retired types and suggest their successor."""
    if instance_type.retired:
        yield Reason(instance_type.retirement, command("--set", f"resources.instance_type={instance_type.replacement}"))


@rule("efa", "A recipe that requires EFA never falls back to TCP.")
def lacks_efa(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types without EFA if the recipe requires EFA."""
    if inputs.wants_efa(instance_type) and instance_type.efa_interfaces == 0:
        with_efa = [other for other in inputs.catalog.types.values() if other.efa_interfaces and not other.retired]
        same = sorted((other for other in with_efa if other.gpu == instance_type.gpu), key=lambda other: other.gpus)
        near = f"; {same[0].name} has it" if same else ""
        yield Reason(f"{instance_type.name} has no EFA{near}", "--set resources.network=auto")


@rule("reservation", "A reservation covers one type in one zone, with a limited number of free instances.")
def reservation_mismatch(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types that do not match the recipe's reservation."""
    reservation_id, reservation = inputs.recipe.resources.reservation, inputs.quotes.reservation
    if reservation_id is None or not inputs.quotes.live:
        return
    if reservation is None:
        yield Reason(f"no reservation {reservation_id} found in {', '.join(inputs.known_regions)}")
    elif reservation.instance_type != instance_type.name:
        fix = command("--set", f"resources.instance_type={reservation.instance_type}")
        yield Reason(f"{reservation_id} is for {reservation.instance_type}, not for {instance_type.name}", fix)
    else:
        for why in unsuitable_reasons(reservation, inputs.market, inputs.recipe.resources.nodes):
            yield Reason(why)


@rule("address", "EC2 does not assign public addresses to nodes with several network interfaces.")
def unreachable(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions with too few Elastic IPs, because nodes that cannot be reached would still cost money."""
    needed = elastic_ips(inputs.public_address(instance_type, region), inputs.recipe.resources.nodes)
    free = inputs.free_addresses(region)
    if needed > free:
        message = f"{instance_type.name} needs {plural(needed, 'Elastic IP')} in {region}"
        fix = "request a higher quota in Service Quotas (L-0263D0A3), or release unused Elastic IPs"
        yield Reason(f"{message}, but the account can allocate only {free} more there", fix)


@rule("subnet", "Nodes are launched only into a subnet in which they can be reached.")
def no_network(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions without a usable VPC, or without a suitable subnet in any zone that could be used."""
    network, public_address = inputs.quotes.networks.get(region), inputs.public_address(instance_type, region)
    if network is None or public_address in GATEWAYS:
        return
    problem, fix = network_problem(network, region, public_address, inputs.network.subnet_id)
    if problem:
        yield Reason(problem, fix)
    else:
        reasons = subnet_reasons(inputs, instance_type, region)
        missing = [why for why in reasons.values() if why is not None]
        if reasons and len(missing) == len(reasons):
            texts = list(dict.fromkeys(why.message for why in missing))
            more = f"; and {plural(len(texts) - _REASONS, 'more zone')}" if len(texts) > _REASONS else ""
            yield Reason("; ".join(texts[:_REASONS]) + more, missing[0].fix)


def subnet_reasons(inputs: PlannerInput, instance_type: InstanceType, region: str) -> dict[str, Reason | None]:
    """Return, for each zone that no other rule excludes, why it has no suitable subnet; None if it has one."""
    zones = _zones_except_by_subnet(inputs, instance_type, region)
    return {zone: next(no_subnet.find(inputs, instance_type, region, zone), None) for zone in zones}


@rule("machine-image-id", "AWS rejects the launch of an image that does not exist or does not fit the type.")
def image_unusable(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions in which the type's machine image does not exist, cannot be launched, or does not fit."""
    image = inputs.image(instance_type, region)
    seen = inputs.quotes.machine_images.get((image, region))
    if seen is None or seen.presence == "unknown":
        return
    if seen.presence == "missing":
        what = f"machine image {image}" if image.startswith("ami-") else f"the parameter {image} of the machine image"
        shared = " or is not shared with this account" if image.startswith("ami-") else ""
        yield Reason(f"{what} does not exist in {region}{shared}", _OTHER_IMAGE)
    elif seen.unfit:
        yield Reason(f"machine image {image} in {region} {seen.unfit}", _OTHER_IMAGE)
    elif seen.architecture and seen.architecture != _ARCHITECTURE:
        types = f"but {instance_type.name} needs {_ARCHITECTURE}"
        yield Reason(f"machine image {image} in {region} is for {seen.architecture}, {types}", _OTHER_IMAGE)


@rule("reservation", "A reservation is in one zone, which the recipe must allow.")
def reserved_elsewhere(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude a region unless it contains the reservation's zone and the recipe can use that zone."""
    reservation = inputs.quotes.reservation
    if (
        reservation is not None
        and inputs.zones_offering(instance_type, region)
        and not usable_zones(inputs, instance_type, region)
    ):
        where = f"{reservation.id} is in {reservation.zone}"
        yield Reason(f"{where}, which is not in {region} or is excluded by the recipe's zones or storage")


@rule("offered", "AWS offers a type only in some regions, and only in some zones of these regions.")
def not_offered(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions that do not offer the type in any zone that the recipe allows."""
    offering = inputs.zones_offering(instance_type, region)
    if not offering:
        elsewhere = [name for name, zones in instance_type.zones.items() if zones and name != region]
        priced = [name for name in elsewhere if name in instance_type.on_demand_usd] or elsewhere
        fix = command("--set", f"resources.regions={','.join(sorted(priced))}") if priced else ""
        yield Reason(f"{instance_type.name} is not offered in {region}", fix)
    elif inputs.quotes.reservation is not None:
        return
    elif _requested_zones(inputs, region) and not set(_requested_zones(inputs, region)) & set(offering):
        requested = ", ".join(_requested_zones(inputs, region))
        yield Reason(
            f"{instance_type.name} is not offered in {requested}; in {region} it is offered in {', '.join(offering)}",
            command("--set", f"resources.zones={','.join(offering)}"),
        )


def _requested_zones(inputs: PlannerInput, region: str) -> tuple[str, ...]:
    return tuple(zone for zone in inputs.recipe.resources.zones if zone[:-1] == region)


@rule("price", "cloudgpu never launches a type whose worst-case cost is unknown.")
def not_priced(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions in which the type has no known price."""
    if inputs.market == "capacity-block":
        return
    zones = usable_zones(inputs, instance_type, region)
    unquoted = [zone for zone in zones if (instance_type.name, zone, inputs.market) not in inputs.quotes.prices]
    if unquoted and region not in instance_type.on_demand_usd:
        why = inputs.quotes.prices_unknown.get((instance_type.name, region), "")
        message = f"no price is known for {instance_type.name} in {region}"
        refresh = command("cloudgpu", "catalog", "refresh", "--on", inputs.target, "--region", region)
        yield Reason(f"{message}: {why}" if why else message, refresh)


TYPE_RULES: Final[tuple[Rule[OfType], ...]] = (
    retired,
    gpu_memory_short,
    not_sold_in_market,
    lacks_efa,
    reservation_mismatch,
    *SOFTWARE_RULES,
)
REGION_RULES: Final[tuple[Rule[OfRegion], ...]] = (
    region_not_enabled,
    reserved_elsewhere,
    storage_in_other_region,
    not_offered,
    not_priced,
    quota_too_small,
    unreachable,
    no_network,
    image_unusable,
)
ZONE_RULES: Final[tuple[Rule[OfZone], ...]] = (not_allowed, not_reserved, storage_not_mountable, no_subnet)
