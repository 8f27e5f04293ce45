"""Check how the nodes are reached and how they communicate with each other."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.network_access import PublicAddress, contradiction, explained, several_interfaces


@check("address", "error", "Nodes that cannot be reached still cost money, and so do addresses.")
def reachable(case: Case) -> Iterator[Issue]:
    """Report how nodes are reached if EC2 assigns no address, and what the expiry does not delete."""
    conflict = contradiction(case.question.network)
    if conflict:
        yield Issue(conflict, "change one of the settings: `cloudgpu config`")
        return
    region_of = {
        (candidate.instance_type, candidate.public_address): candidate.region
        for candidate in reversed(case.field.candidates)
    }
    for (name, public_address), region in reversed(region_of.items()):
        traffic = other_price("nat_gateway_gb_usd", region)
        for line in explained(public_address, case.plan.nodes, None if traffic is None else traffic.usd):
            yield Issue(f"{name}: {line}", severity="note")


@check("interfaces", "note", "EC2 assigns no public address to a node with several network interfaces.")
def several_cards(case: Case) -> Iterator[Issue]:
    """Report types with several interfaces, and what replaces the public address."""
    for candidate in {candidate.instance_type: candidate for candidate in case.field.candidates}.values():
        kind = case.question.catalog.types[candidate.instance_type]
        if several_interfaces(kind, candidate.efa_interfaces):
            message = f"{kind.name} has {candidate.efa_interfaces} EFA interfaces, so EC2 assigns it no public address"
            yield Issue(f"{message}: {_REPLACEMENT[candidate.public_address]}")


@check("fabric", "warning", "A cluster never falls back from EFA to TCP silently.")
def tcp_reported(case: Case) -> Iterator[Issue]:
    """Report clusters that communicate over TCP."""
    if case.plan.nodes == 1:
        return
    without_efa = [candidate for candidate in case.field.candidates if not candidate.efa_interfaces]
    for name in dict.fromkeys(candidate.instance_type for candidate in without_efa):
        kind = case.question.catalog.types[name]
        speed = "" if kind.network_gbps is None else f", {kind.network_gbps:f} Gb/s at most"
        if kind.efa_interfaces:
            message = f"{name} has EFA, but resources.network is tcp: the nodes communicate over TCP{speed}"
            yield Issue(message, "--set resources.network=auto", "note" if case.question.rehearsed else "warning")
        else:
            yield Issue(f"{name} has no EFA: the nodes communicate over TCP{speed}", severity="note")


_REPLACEMENT: Final[Mapping[PublicAddress, str]] = {
    "auto": "an Elastic IP or a private address is needed",
    "elastic": "each node gets an Elastic IP",
    "nat": "the first node gets an Elastic IP, and the others are reached through it",
    "private": "it is reached by its private address",
    "private-nat": "it has only a private address and is reached through Session Manager",
}
"""Kind of address -> what replaces the public address that EC2 does not assign."""
