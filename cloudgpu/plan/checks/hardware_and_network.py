"""Check that GPUs, types and regions exist, that candidates remain, and how their nodes are connected."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.catalog.gpu_spec import find_spec_mismatch
from cloudgpu.catalog.prices_and_quotas import other_price
from cloudgpu.catalog.unsupported import doubtful_type, unsupported_partition
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.exclusions import subnet_reasons
from cloudgpu.plan.network_access import PublicAddress, access_notes, find_contradiction, several_interfaces
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import new_mount_subnets
from cloudgpu.plan.subnets import places_by_reason
from cloudgpu.recipe.problem import nearest_name, suggestion
from cloudgpu.text import command

_REPLACEMENT: Final[Mapping[PublicAddress, str]] = {
    "auto": "an Elastic IP or a private address is needed",
    "elastic": "each node gets an Elastic IP",
    "nat": "the first node gets an Elastic IP, and the other nodes are reached through that node",
    "private": "nodes are reached at their private addresses",
    "private-nat": "nodes have only private addresses and are reached through Session Manager",
}
"""Kind of address -> what replaces the public address that EC2 does not assign."""


@check("instance-type", "error", "A mistyped instance type is reported as unknown, not as unavailable.", on_hosts=False)
def instance_types_known(context: CheckContext) -> Iterator[Issue]:
    """Report instance types that are not in the catalog or not offered by AWS."""
    for spec in context.inputs.specs:
        problem = find_spec_mismatch(spec, context.inputs.catalog)
        if problem is not None and problem.about == "instance-type":
            yield Issue(problem.message, problem.fix)


@check(
    "gpu",
    "error",
    "An unknown GPU, or a count that no type has, is reported as such, not as unavailable.",
    on_hosts=False,
)
def gpus_known(context: CheckContext) -> Iterator[Issue]:
    """Report unknown GPUs, and counts or memory sizes that do not exist."""
    for spec in context.inputs.specs:
        problem = find_spec_mismatch(spec, context.inputs.catalog)
        if problem is not None and problem.about == "gpu":
            yield Issue(problem.message, problem.fix)


@check("region", "error", "A mistyped region is an error and is not silently ignored.", on_hosts=False)
def regions_known(context: CheckContext) -> Iterator[Issue]:
    """Report regions that are not in the catalog or that belong to another partition of AWS."""
    regions = context.inputs.catalog.regions
    for region in context.inputs.regions:
        if unsupported := unsupported_partition(region):
            yield Issue(unsupported, "--set resources.regions=us-east-1, with an account of the partition aws")
        elif region not in regions:
            similar = nearest_name(region, regions)
            fix = command("--set", f"resources.regions={similar}") if similar else ""
            yield Issue(f"unknown region {region}{suggestion(region, regions)}", fix)


@check(
    "left-out",
    "error",
    "Requested hardware that is excluded is always reported, together with the rule.",
    on_hosts=False,
)
def excluded_candidates(context: CheckContext) -> Iterator[Issue]:
    """Report exclusions: as errors if no candidate is left, otherwise as warnings."""
    for exclusion in context.candidate_list.left_out:
        if context.candidate_list.candidates:
            yield Issue(f"excluded: {exclusion.message}", exclusion.fix, "warning", rule=exclusion.check)
        else:
            yield Issue(exclusion.message, exclusion.fix, rule=exclusion.check)


@check(
    "candidates",
    "error",
    "A plan without candidates is never applied, even if no rule explains why there are none.",
    on_hosts=False,
)
def no_candidates(context: CheckContext) -> Iterator[Issue]:
    """Report that there are no candidates although no rule excluded any."""
    inputs, candidate_list = context.inputs, context.candidate_list
    if (
        inputs.types
        and inputs.known_regions == inputs.regions
        and not candidate_list.candidates
        and not candidate_list.left_out
    ):
        yield Issue(f"the recipe cannot use any zone of {', '.join(inputs.regions)}")


@check("new-account", "note", "AWS may refuse an old type to an account that has never used it.")
def available_to_new_accounts(context: CheckContext) -> Iterator[Issue]:
    """Report types that a new account may not be able to launch, and the nearest type that it can."""
    if context.inputs.rehearsed or context.inputs.hosts is not None or context.inputs.recipe.resources.reservation:
        return
    for name in dict.fromkeys(candidate.instance_type for candidate in context.candidate_list.candidates):
        doubt = doubtful_type(name)
        if doubt is not None:
            yield Issue(str(doubt), command("--set", f"resources.instance_type={doubt.replacement}"))


@check(
    "gang",
    "note",
    "Results from different GPUs are not comparable, and a checkpoint must fit every GPU.",
    on_hosts=False,
)
def same_gpu_in_all_attempts(context: CheckContext) -> Iterator[Issue]:
    """Report that attempts may use different GPUs. All nodes of one attempt have the same type."""
    kinds = dict.fromkeys(
        f"{candidate.gpu} {candidate.gpu_memory_gib:f} GiB" for candidate in context.candidate_list.candidates
    )
    if len(kinds) > 1:
        yield Issue(f"the GPU depends on availability and is the same on all nodes: {' or '.join(kinds)}")


@check("image-region", "error", "A machine image ID exists in one region only.", on_hosts=False)
def image_in_every_region(context: CheckContext) -> Iterator[Issue]:
    """Report an `ami-...` image if the recipe lists several regions."""
    image, regions = context.inputs.recipe.resources.image or "", context.inputs.regions
    if image.startswith("ami-") and len(regions) > 1:
        message = f"{image} exists in one region only, but the recipe lists {len(regions)}"
        yield Issue(message, command("--set", f"resources.regions={regions[0]}"))


@check(
    "image-state",
    "warning",
    "AWS still launches a deprecated image, but sells some images only by subscription.",
    on_hosts=False,
)
def image_current(context: CheckContext) -> Iterator[Issue]:
    """Report machine images that are deprecated, need a Marketplace subscription, or could not be read."""
    inputs, types = context.inputs, context.inputs.catalog.types
    images = dict.fromkeys(
        (inputs.image(types[candidate.instance_type], candidate.region), candidate.region)
        for candidate in context.candidate_list.candidates
    )
    for image, region in images:
        seen = inputs.quotes.machine_images.get((image, region))
        if seen is None:
            continue
        name = f"machine image {image} in {region}"
        if seen.presence == "unknown":
            yield Issue(f"cannot tell whether {name} exists: {seen.why}", severity="unknown")
        if seen.deprecated_on is not None and seen.deprecated_on <= inputs.today:
            yield Issue(f"{name} is deprecated since {seen.deprecated_on}", "set resources.image to a newer image")
        if seen.product_codes:
            products = ", ".join(seen.product_codes)
            yield Issue(f"{name} needs a subscription to {products}", "subscribe to it in AWS Marketplace once")


@check(
    "address",
    "error",
    "Nodes that cannot be reached still cost money, and so do addresses that outlive the nodes.",
    on_hosts=False,
)
def reachable(context: CheckContext) -> Iterator[Issue]:
    """Report how nodes without a public address from EC2 are reached, and which resources outlive the expiry."""
    conflict = find_contradiction(context.inputs.network)
    if conflict:
        yield Issue(conflict, "change one of the settings: `cloudgpu config`")
        return
    region_of = {
        (candidate.instance_type, candidate.public_address): candidate.region
        for candidate in reversed(context.candidate_list.candidates)
    }
    for (name, public_address), region in reversed(region_of.items()):
        traffic = other_price("nat_gateway_gb_usd", region)
        for line in access_notes(public_address, context.plan.nodes, None if traffic is None else traffic.usd):
            yield Issue(f"{name}: {line}", severity="note")


@check("subnets", "warning", "The plan shows the subnet of each zone, and why it was chosen.", on_hosts=False)
def subnets_chosen(context: CheckContext) -> Iterator[Issue]:
    """Report the subnet of each zone, zones without one, and regions whose subnets could not be read."""
    inputs = context.inputs
    for region, network in inputs.quotes.networks.items():
        here = [candidate for candidate in context.candidate_list.candidates if candidate.region == region]
        if network.unknown and here:
            message = f"cannot tell in which subnets nodes can be reached in {region}: {network.unknown}"
            yield Issue(message, severity="unknown")
        chosen = [(candidate.zone, candidate.subnet, candidate.subnet_why) for candidate in here if candidate.subnet]
        for line in places_by_reason(network, chosen):
            yield Issue(line, severity="note")
        yield from _mount_targets(context, region)
        yield from _zones_without_subnet(inputs, {candidate.instance_type for candidate in here}, region)


def _mount_targets(context: CheckContext, region: str) -> Iterator[Issue]:
    """Yield the subnets from which a new EFS file system is mounted. A Lustre file system is in the nodes' subnet."""
    for storage in context.inputs.recipe.storage:
        found = new_mount_subnets(context.inputs, context.candidate_list.candidates, storage, region)
        if found is not None and found.chosen:
            places = ", ".join(f"{subnet} in {zone}" for zone, subnet in found.ids.items())
            yield Issue(f"storage {storage.name} gets mount targets in {places}", severity="note")


def _zones_without_subnet(inputs: PlannerInput, names: set[str], region: str) -> Iterator[Issue]:
    """Yield the zones that are excluded for their subnets, and the zones whose subnet has too few free addresses."""
    issues: dict[str, Issue] = {}
    for name in sorted(names):
        instance_type = inputs.catalog.types[name]
        for zone, reason in subnet_reasons(inputs, instance_type, region).items():
            decision = inputs.subnet(instance_type, region, zone)
            if reason is not None:
                issues[reason.message] = Issue(f"{zone} is excluded: {reason.message}", reason.fix, "note")
            elif decision is not None and decision.short:
                message = f"{decision.why}, unless this run reuses a cluster there"
                issues[message] = Issue(message, decision.fix, "warning")
    yield from issues.values()


@check(
    "interfaces",
    "note",
    "EC2 does not assign a public address to a node with several network interfaces.",
    on_hosts=False,
)
def several_network_cards(context: CheckContext) -> Iterator[Issue]:
    """Report types with several network interfaces, and how nodes without a public address from EC2 are reached."""
    for candidate in {candidate.instance_type: candidate for candidate in context.candidate_list.candidates}.values():
        instance_type = context.inputs.catalog.types[candidate.instance_type]
        if several_interfaces(instance_type, candidate.efa_interfaces):
            interfaces = f"{instance_type.name} has {candidate.efa_interfaces} EFA interfaces"
            replacement = _REPLACEMENT[candidate.public_address]
            yield Issue(f"{interfaces}, so EC2 does not assign a public address: {replacement}")


@check("fabric", "warning", "A cluster never falls back from EFA to TCP silently.", on_hosts=False)
def tcp_network(context: CheckContext) -> Iterator[Issue]:
    """Report clusters that communicate over TCP."""
    if context.plan.nodes == 1:
        return
    without_efa = [candidate for candidate in context.candidate_list.candidates if not candidate.efa_interfaces]
    for name in dict.fromkeys(candidate.instance_type for candidate in without_efa):
        instance_type = context.inputs.catalog.types[name]
        speed = "" if instance_type.network_gbps is None else f", {instance_type.network_gbps:f} Gb/s at most"
        if instance_type.efa_interfaces:
            message = f"{name} has EFA, but resources.network is tcp: the nodes communicate over TCP{speed}"
            yield Issue(message, "--set resources.network=auto", "note" if context.inputs.rehearsed else "warning")
        else:
            yield Issue(f"{name} has no EFA: the nodes communicate over TCP{speed}", severity="note")
