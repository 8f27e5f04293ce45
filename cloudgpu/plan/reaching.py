"""How the nodes are reached: which address they get, and where none can be had. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from cloudgpu.catalog import InstanceType

PublicAddress = Literal["auto", "elastic", "nat", "private", "private-nat"]
"""`auto`: EC2 gives each node one. `elastic`: an Elastic IP each. `nat`: an Elastic IP for the first node, through
which the others are reached, and a NAT gateway for the way out. `private`: none; the caller reaches their subnet.
`private-nat`: none, with a NAT gateway for the way out; only Session Manager leads to them."""

Reach = Literal["direct", "ssm"]
"""`direct`: the caller, or a jump host, connects to port 22. `ssm`: AWS Session Manager carries SSH."""

DEFAULT_ELASTIC_IPS = 5
"""AWS's own quota of a region, for an account that nobody asked about."""
BEHIND_NAT = 2
"""Elastic IPs that a cluster behind NAT takes, whatever its size: the gateway's and the first node's."""
GATEWAYS = frozenset({"nat", "private-nat"})
"""Ways with a NAT gateway in a VPC that is made for the cluster."""


@dataclass(frozen=True)
class NetworkRequest:
    """What the settings say of the network.

    Attributes:
        public_address: As requested; `auto` lets the planner decide.
        own_subnet: The user names a subnet.
        own_network: The user names a VPC, subnet or security group, so that none can be made around the nodes.
        reach: What carries SSH to the nodes.
        bastion: The jump host before them; empty where there is none.
        caller_named: The settings say which addresses may reach port 22.
        own_group: The user names a security group, and so decides who reaches port 22.
    """

    public_address: PublicAddress = "auto"
    own_subnet: bool = False
    own_network: bool = False
    reach: Reach = "direct"
    bastion: str = ""
    caller_named: bool = False
    own_group: bool = False


NO_REQUEST = NetworkRequest()


def several_interfaces(kind: InstanceType, efa: int) -> bool:
    """Whether a node has more than one, and so gets no public address of EC2's.

    A type with more cards than EFA interfaces has a first card for IP alone.
    """
    return efa > 1 or (efa > 0 and kind.network_cards > kind.efa_interfaces)


def chosen(request: NetworkRequest, nodes: int, free: int, *, several: bool) -> PublicAddress:
    """The way for a gang of this size where the account has so many Elastic IPs free."""
    way = (
        request.public_address
        if request.public_address != "auto"
        else _by_itself(request, nodes, free, several=several)
    )
    # By Session Manager nobody would use the first node's address, and private nodes need no subnet of the user's.
    replaced = ("nat",) if request.own_network else ("nat", "private")
    return "private-nat" if request.reach == "ssm" and way in replaced else way


def _by_itself(request: NetworkRequest, nodes: int, free: int, *, several: bool) -> PublicAddress:
    if request.own_subnet and (several or request.bastion):
        return "private"
    if not several:
        return "auto"
    return "elastic" if nodes <= free or request.own_network else "nat"


def elastic_ips(way: PublicAddress, nodes: int) -> int:
    """How many Elastic IPs it takes."""
    return {"elastic": nodes, "nat": BEHIND_NAT, "private-nat": 1}.get(way, 0)


def contradiction(request: NetworkRequest) -> str:
    """Why the settings cannot be met together; empty when they can."""
    way, ssm = request.public_address, request.reach == "ssm"
    needs = "names a subnet whose private addresses"
    wrong = (
        (
            way in GATEWAYS and request.own_network,
            f"public_address is {way}, which makes a VPC, but vpc_id, subnet_id or security_group_id names your own",
        ),
        (
            way == "private" and not request.own_subnet and (request.own_network or not ssm),
            f"public_address is private, but no subnet_id {needs} you reach",
        ),
        (way == "private-nat" and not ssm, "public_address is private-nat, which nobody reaches without reach = ssm"),
        (bool(request.bastion) and ssm, "bastion names a jump host, but reach is ssm, which needs none"),
        (bool(request.bastion) and not request.own_subnet, f"bastion is set, but no subnet_id {needs} it reaches"),
        (
            bool(request.bastion) and not (request.caller_named or request.own_group),
            "bastion is set, but ssh_cidr does not say from which private address it reaches the nodes",
        ),
    )
    return next((text for holds, text in wrong if holds), "")


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
    elif way in GATEWAYS:
        jump = (
            "nodes are reached through the first one, and"
            if way == "nat"
            else "nodes have private addresses alone, and"
        )
        yield f"{jump} reach out through a NAT gateway"
        addresses = f"its {BEHIND_NAT} Elastic IPs" if way == "nat" else "its Elastic IP"
        yield f"the gateway and {addresses} cost {lasting}"
        cost = "an unknown price" if gateway_gb_usd is None else f"{gateway_gb_usd} USD/GB"
        yield f"traffic through the NAT gateway costs {cost} more; S3 in the region does not pass it"
