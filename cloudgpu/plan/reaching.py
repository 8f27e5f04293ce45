"""How the nodes are reached: which address they get, and where none can be had. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from cloudgpu.catalog import InstanceType

PublicAddress = Literal["auto", "elastic", "nat", "private"]
"""`auto`: EC2 gives each node one. `elastic`: an Elastic IP each. `nat`: an Elastic IP for the first node, through
which the others are reached, and a NAT gateway for the way out. `private`: none; the caller reaches their subnet."""

DEFAULT_ELASTIC_IPS = 5
"""AWS's own quota of a region, for an account that nobody asked about."""
BEHIND_NAT = 2
"""Elastic IPs that a cluster behind NAT takes, whatever its size: the gateway's and the first node's."""


@dataclass(frozen=True)
class NetworkWish:
    """What the settings say of the network.

    Attributes:
        public_address: The wish; `auto` leaves it to the plan.
        own_subnet: The user names a subnet.
        own_network: The user names a VPC, subnet or security group, so that none can be made around the nodes.
    """

    public_address: PublicAddress = "auto"
    own_subnet: bool = False
    own_network: bool = False


NO_WISH = NetworkWish()


def several_interfaces(kind: InstanceType, efa: int) -> bool:
    """Whether a node has more than one, and so gets no public address of EC2's.

    A type with more cards than EFA interfaces has a first card for IP alone.
    """
    return efa > 1 or (efa > 0 and kind.network_cards > kind.efa_interfaces)


def chosen(wish: NetworkWish, nodes: int, free: int, *, several: bool) -> PublicAddress:
    """The way for a gang of this size where the account has so many Elastic IPs free."""
    if wish.public_address != "auto":
        return wish.public_address
    if not several:
        return "auto"
    if wish.own_subnet:
        return "private"
    return "elastic" if nodes <= free or wish.own_network else "nat"


def elastic_ips(way: PublicAddress, nodes: int) -> int:
    """How many Elastic IPs it takes."""
    return {"elastic": nodes, "nat": BEHIND_NAT}.get(way, 0)


def contradiction(wish: NetworkWish) -> str:
    """Why the settings cannot be met together; empty when they can."""
    if wish.public_address == "nat" and wish.own_network:
        return "public_address is nat, which makes a VPC, but vpc_id, subnet_id or security_group_id names your own"
    if wish.public_address == "private" and not wish.own_subnet:
        return "public_address is private, but no subnet_id names a subnet whose private addresses you reach"
    return ""


def explained(way: PublicAddress, nodes: int, gateway_gb_usd: Decimal | None) -> Iterator[str]:
    """The way, and what of it the expiry does not end, in words; nothing for the ways that cost nothing extra.

    `gateway_gb_usd` is what a GB through the NAT gateway costs; None where it is not known.
    """
    lasting = "until `down` or `sweep` releases them: the expiry ends nodes alone"
    if way == "elastic":
        yield (
            f"{nodes} Elastic IPs, one a node, cost {lasting}"
            if nodes > 1
            else ("an Elastic IP costs until `down` or `sweep` releases it: the expiry ends nodes alone")
        )
    elif way == "nat":
        yield "nodes are reached through the first one, and reach out through a NAT gateway"
        yield f"the gateway and its {BEHIND_NAT} Elastic IPs cost {lasting}"
        cost = "an unknown price" if gateway_gb_usd is None else f"{gateway_gb_usd} USD/GB"
        yield f"traffic through the NAT gateway costs {cost} more; S3 in the region does not pass it"
