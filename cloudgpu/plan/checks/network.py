"""Check how the nodes are reached and how they communicate with each other."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.reaching import PublicAddress, contradiction, explained, several_interfaces


@check("address", "error", "Nodes that cannot be reached still cost money, and so do addresses.")
def reachable(case: Case) -> Iterator[Issue]:
    """Report how nodes are reached if EC2 assigns no address, and what the expiry does not delete."""
    wrong = contradiction(case.question.network)
    if wrong:
        yield Issue(wrong, "change one of the settings: `cloudgpu config`")
        return
    ways = {(one.instance_type, one.public_address): one.region for one in reversed(case.field.candidates)}
    for (name, way), region in reversed(ways.items()):
        traffic = other_price("nat_gateway_gb_usd", region)
        for line in explained(way, case.plan.nodes, None if traffic is None else traffic.usd):
            yield Issue(f"{name}: {line}", severity="note")


@check("interfaces", "note", "EC2 assigns no public address to a node with several network interfaces.")
def several_cards(case: Case) -> Iterator[Issue]:
    """Report types with several interfaces, and what replaces the public address."""
    for one in {one.instance_type: one for one in case.field.candidates}.values():
        kind = case.question.catalog.types[one.instance_type]
        if several_interfaces(kind, one.efa_interfaces):
            message = f"{kind.name} has {one.efa_interfaces} EFA interfaces, so EC2 assigns it no public address"
            yield Issue(f"{message}: {_STANDS_IN[one.public_address]}")


@check("fabric", "warning", "A cluster never falls back from EFA to TCP silently.")
def tcp_reported(case: Case) -> Iterator[Issue]:
    """Report clusters that communicate over TCP."""
    if case.plan.nodes == 1:
        return
    for name in dict.fromkeys(one.instance_type for one in case.field.candidates if not one.efa_interfaces):
        kind = case.question.catalog.types[name]
        speed = "" if kind.network_gbps is None else f", {kind.network_gbps:f} Gb/s at most"
        if kind.efa_interfaces:
            message = f"{name} has EFA, but resources.network is tcp: the nodes communicate over TCP{speed}"
            yield Issue(message, "--set resources.network=auto", "note" if case.question.rehearsed else "warning")
        else:
            yield Issue(f"{name} has no EFA: the nodes communicate over TCP{speed}", severity="note")


_STANDS_IN: Final[Mapping[PublicAddress, str]] = {
    "auto": "an Elastic IP or a private address is needed",
    "elastic": "each node gets an Elastic IP",
    "nat": "the first node gets an Elastic IP, and the others are reached through it",
    "private": "it is reached by its private address",
    "private-nat": "it has a private address alone, and Session Manager leads to it",
}
