"""How the nodes are reached, and how they reach each other."""

from collections.abc import Iterator, Mapping
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.reaching import PublicAddress, contradiction, explained, several_interfaces


@check("address", "error", "Nodes that come up and cannot be reached cost money all the same; addresses cost some too.")
def reachable(case: Case) -> Iterator[Found]:
    """Which address the nodes get, where EC2 gives none by itself, and what of it the expiry does not end."""
    wrong = contradiction(case.question.network)
    if wrong:
        yield Found(wrong, "change one of the settings: `cloudgpu config`")
        return
    ways = {(one.instance_type, one.public_address): one.region for one in reversed(case.field.candidates)}
    for (name, way), region in reversed(ways.items()):
        traffic = other_price("nat_gateway_gb_usd", region)
        for line in explained(way, case.plan.nodes, None if traffic is None else traffic.usd):
            yield Found(f"{name}: {line}", severity="note")


@check("interfaces", "note", "EC2 gives a node with several network interfaces no public address of its own.")
def several_cards(case: Case) -> Iterator[Found]:
    """Types with several interfaces, and what stands in for the address."""
    for one in {one.instance_type: one for one in case.field.candidates}.values():
        kind = case.question.catalog.types[one.instance_type]
        if several_interfaces(kind, one.efa_interfaces):
            message = f"{kind.name} has {one.efa_interfaces} EFA interfaces, so EC2 gives it no public address"
            yield Found(f"{message}: {_STANDS_IN[one.public_address]}")


@check("fabric", "warning", "A gang never falls back from EFA to TCP without a word.")
def fabric_told(case: Case) -> Iterator[Found]:
    """Several nodes that talk over TCP."""
    if case.plan.nodes == 1:
        return
    for name in dict.fromkeys(one.instance_type for one in case.field.candidates if not one.efa_interfaces):
        kind = case.question.catalog.types[name]
        speed = "" if kind.network_gbps is None else f", {kind.network_gbps:f} Gb/s at most"
        if kind.efa_interfaces:
            message = f"{name} has EFA, and resources.network is tcp: the nodes talk over TCP{speed}"
            yield Found(message, "--set resources.network=auto", "note" if case.question.rehearsed else "warning")
        else:
            yield Found(f"{name} has no EFA: the nodes talk over TCP{speed}", severity="note")


_STANDS_IN: Final[Mapping[PublicAddress, str]] = {
    "auto": "an Elastic IP or a private address is needed",
    "elastic": "each node gets an Elastic IP",
    "nat": "the first node gets an Elastic IP, and the others are reached through it",
    "private": "it is reached by its private address",
    "private-nat": "it has a private address alone, and Session Manager leads to it",
}
