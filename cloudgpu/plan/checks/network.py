"""Check how the nodes are reached and how they communicate with each other."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.candidates.exclusions import subnet_reasons
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.network_access import PublicAddress, access_notes, find_contradiction, several_interfaces
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import new_mount_subnets
from cloudgpu.plan.subnets import places_by_reason


@check("address", "error", "Nodes that cannot be reached still cost money, and so do addresses that outlive the nodes.")
def reachable(case: CheckInput) -> Iterator[Issue]:
    """Report how nodes without a public address from EC2 are reached, and which resources outlive the expiry."""
    conflict = find_contradiction(case.question.network)
    if conflict:
        yield Issue(conflict, "change one of the settings: `cloudgpu config`")
        return
    region_of = {
        (candidate.instance_type, candidate.public_address): candidate.region
        for candidate in reversed(case.field.candidates)
    }
    for (name, public_address), region in reversed(region_of.items()):
        traffic = other_price("nat_gateway_gb_usd", region)
        for line in access_notes(public_address, case.plan.nodes, None if traffic is None else traffic.usd):
            yield Issue(f"{name}: {line}", severity="note")


@check("subnets", "warning", "The plan shows the subnet of each zone, and why it was chosen.")
def subnets_chosen(case: CheckInput) -> Iterator[Issue]:
    """Report the subnet of each zone, zones without one, and regions whose subnets could not be read."""
    question = case.question
    for region, network in question.quotes.networks.items():
        here = [candidate for candidate in case.field.candidates if candidate.region == region]
        if network.unknown and here:
            message = f"cannot tell in which subnets nodes can be reached in {region}: {network.unknown}"
            yield Issue(message, severity="unknown")
        chosen = [(candidate.zone, candidate.subnet, candidate.subnet_why) for candidate in here if candidate.subnet]
        for line in places_by_reason(network, chosen):
            yield Issue(line, severity="note")
        yield from _mount_targets(case, region)
        yield from _zones_without_subnet(question, {candidate.instance_type for candidate in here}, region)


def _mount_targets(case: CheckInput, region: str) -> Iterator[Issue]:
    """Yield the subnets from which a new EFS file system is mounted. A Lustre file system is in the nodes' subnet."""
    for storage in case.question.recipe.storage:
        found = new_mount_subnets(case.question, case.field.candidates, storage, region)
        if found is not None and found.chosen:
            places = ", ".join(f"{subnet} in {zone}" for zone, subnet in found.ids.items())
            yield Issue(f"storage {storage.name} gets mount targets in {places}", severity="note")


def _zones_without_subnet(question: PlannerInput, names: set[str], region: str) -> Iterator[Issue]:
    """Yield the zones that are excluded for their subnets, and the zones whose subnet has too few free addresses."""
    said: dict[str, Issue] = {}
    for name in sorted(names):
        instance_type = question.catalog.types[name]
        for zone, reason in subnet_reasons(question, instance_type, region).items():
            decision = question.subnet(instance_type, region, zone)
            if reason is not None:
                said[reason.message] = Issue(f"{zone} is excluded: {reason.message}", reason.fix, "note")
            elif decision is not None and decision.short:
                message = f"{decision.why}, unless this run reuses a cluster there"
                said[message] = Issue(message, decision.fix, "warning")
    yield from said.values()


@check("interfaces", "note", "EC2 does not assign a public address to a node with several network interfaces.")
def several_network_cards(case: CheckInput) -> Iterator[Issue]:
    """Report types with several network interfaces, and how nodes without a public address from EC2 are reached."""
    for candidate in {candidate.instance_type: candidate for candidate in case.field.candidates}.values():
        instance_type = case.question.catalog.types[candidate.instance_type]
        if several_interfaces(instance_type, candidate.efa_interfaces):
            interfaces = f"{instance_type.name} has {candidate.efa_interfaces} EFA interfaces"
            replacement = _REPLACEMENT[candidate.public_address]
            yield Issue(f"{interfaces}, so EC2 does not assign a public address: {replacement}")


@check("fabric", "warning", "A cluster never falls back from EFA to TCP silently.")
def tcp_network(case: CheckInput) -> Iterator[Issue]:
    """Report clusters that communicate over TCP."""
    if case.plan.nodes == 1:
        return
    without_efa = [candidate for candidate in case.field.candidates if not candidate.efa_interfaces]
    for name in dict.fromkeys(candidate.instance_type for candidate in without_efa):
        instance_type = case.question.catalog.types[name]
        speed = "" if instance_type.network_gbps is None else f", {instance_type.network_gbps:f} Gb/s at most"
        if instance_type.efa_interfaces:
            message = f"{name} has EFA, but resources.network is tcp: the nodes communicate over TCP{speed}"
            yield Issue(message, "--set resources.network=auto", "note" if case.question.rehearsed else "warning")
        else:
            yield Issue(f"{name} has no EFA: the nodes communicate over TCP{speed}", severity="note")


_REPLACEMENT: Final[Mapping[PublicAddress, str]] = {
    "auto": "an Elastic IP or a private address is needed",
    "elastic": "each node gets an Elastic IP",
    "nat": "the first node gets an Elastic IP, and the other nodes are reached through that node",
    "private": "nodes are reached at their private addresses",
    "private-nat": "nodes have only private addresses and are reached through Session Manager",
}
"""Kind of address -> what replaces the public address that EC2 does not assign."""
