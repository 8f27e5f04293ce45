"""The nodes' public addresses, and how SSH reaches the nodes: directly, or through a jump host or Session Manager."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from cloudgpu.catalog import InstanceType

if TYPE_CHECKING:
    from cloudgpu.settings import Settings

PublicAddress = Literal["auto", "elastic", "nat", "private", "private-nat"]
"""`auto`: EC2 assigns a public address to each node. `elastic`: an Elastic IP per node. `nat`: an Elastic IP for the
first node, which is the jump host for the other nodes, and a NAT gateway for outbound traffic. `private`: no public
address, because the caller can reach the subnet. `private-nat`: no public address, a NAT gateway for outbound traffic,
and access only through Session Manager."""

Reach = Literal["direct", "ssm"]
"""`direct`: the caller or a jump host connects to port 22. `ssm`: SSH runs through AWS Session Manager."""

DEFAULT_ELASTIC_IPS = 5
"""Default AWS quota per region, used if the account's quota was not queried."""
BEHIND_NAT = 2
"""Number of Elastic IPs that `nat` needs for a cluster of any size: one for the gateway, one for the first node."""
GATEWAYS = frozenset({"nat", "private-nat"})
"""Kinds of public address that use a NAT gateway, in a VPC created for the cluster."""


@dataclass(frozen=True)
class NetworkRequest:
    """The settings that determine how the nodes are reached.

    Attributes:
        public_address: Requested kind of public address; `auto` lets the planner decide.
        own_subnet: Whether the settings specify a subnet.
        own_network: Whether the settings specify a VPC, subnet or security group, so that cloudgpu creates no VPC.
        reach: How SSH reaches the nodes.
        bastion: Jump host; empty if there is none.
        caller_named: Whether the settings specify the addresses that may connect to port 22.
        own_group: Whether the settings specify a security group, which then controls access to port 22.
        vpc_id: VPC that the settings specify; empty if none. The same applies to the next two fields.
        create_vpc: Whether each cluster gets a new VPC.
    """

    public_address: PublicAddress = "auto"
    own_subnet: bool = False
    own_network: bool = False
    reach: Reach = "direct"
    bastion: str = ""
    caller_named: bool = False
    own_group: bool = False
    vpc_id: str = ""
    subnet_id: str = ""
    security_group_id: str = ""
    create_vpc: bool = False

    @property
    def private_subnets(self) -> bool:
        """True if nodes may have private addresses: in the subnet of the settings, or in one of their VPC."""
        return self.own_subnet or bool(self.vpc_id)


NO_REQUEST = NetworkRequest()


def several_interfaces(instance_type: InstanceType, efa: int) -> bool:
    """Return True if a node has several interfaces, so that EC2 does not assign a public address to the node.

    A type with more network cards than EFA interfaces uses its first card for IP only.
    """
    return efa > 1 or (efa > 0 and instance_type.network_cards > instance_type.efa_interfaces)


def choose_public_address(request: NetworkRequest, nodes: int, free: int, *, several: bool) -> PublicAddress:
    """Return the kind of public address for this many nodes, given the number of free Elastic IPs."""
    public_address = request.public_address
    if public_address == "auto":
        public_address = _automatic(request, nodes, free, several=several)
    # With Session Manager the first node's address would be unused, and private nodes do not need an existing subnet.
    replaced = ("nat",) if request.own_network else ("nat", "private")
    return "private-nat" if request.reach == "ssm" and public_address in replaced else public_address


def _automatic(request: NetworkRequest, nodes: int, free: int, *, several: bool) -> PublicAddress:
    if (request.own_subnet and several) or (request.private_subnets and request.bastion):
        return "private"
    if not several:
        return "auto"
    return "elastic" if nodes <= free or request.own_network else "nat"


def elastic_ips(public_address: PublicAddress, nodes: int) -> int:
    """Return the number of Elastic IPs needed."""
    return {"elastic": nodes, "nat": BEHIND_NAT, "private-nat": 1}.get(public_address, 0)


def network_request(settings: "Settings") -> NetworkRequest:
    """Convert the network settings to the planner's input."""
    return NetworkRequest(
        public_address=settings.public_address,
        own_subnet=bool(settings.subnet_id),
        own_network=bool(settings.vpc_id or settings.subnet_id or settings.security_group_id),
        reach=settings.reach,
        bastion=settings.bastion,
        caller_named=bool(settings.ssh_cidr),
        own_group=bool(settings.security_group_id),
        vpc_id=settings.vpc_id,
        subnet_id=settings.subnet_id,
        security_group_id=settings.security_group_id,
        create_vpc=settings.create_vpc,
    )


def find_contradiction(request: NetworkRequest) -> str:
    """Explain why the settings contradict each other. Return an empty string if they do not."""
    public_address, ssm = request.public_address, request.reach == "ssm"
    needs = "specifies a subnet whose private addresses"
    wrong = (
        (
            public_address in GATEWAYS and request.own_network,
            f"public_address {public_address} creates a VPC, but vpc_id, subnet_id or security_group_id is also set",
        ),
        (
            public_address == "private" and not request.private_subnets and (request.own_network or not ssm),
            f"public_address is private, but no subnet_id {needs} you can reach",
        ),
        (
            public_address == "private-nat" and not ssm,
            "public_address is private-nat, which can only be reached with reach = ssm",
        ),
        (bool(request.bastion) and ssm, "bastion is set, but reach is ssm, which does not use a jump host"),
        (
            bool(request.bastion) and not request.private_subnets,
            f"bastion is set, but no subnet_id {needs} it can reach",
        ),
        (
            bool(request.bastion) and not (request.caller_named or request.own_group),
            "bastion is set, but ssh_cidr is not, so the nodes reject SSH from the jump host's private address",
        ),
    )
    return next((text for holds, text in wrong if holds), "")


def access_notes(public_address: PublicAddress, nodes: int, gateway_gb_usd: Decimal | None) -> Iterator[str]:
    """Yield notes on how nodes are reached and on resources that the expiry does not delete.

    Kinds of address without extra costs have no notes. `gateway_gb_usd` is the price per GB of traffic through the NAT
    gateway; None if unknown.
    """
    until = "until `down` or `sweep` releases them: the expiry terminates only the nodes"
    if public_address == "elastic":
        yield (
            f"{nodes} Elastic IPs, one per node, are billed {until}"
            if nodes > 1
            else ("an Elastic IP is billed until `down` or `sweep` releases it: the expiry terminates only the nodes")
        )
    elif public_address in GATEWAYS:
        jump = (
            "nodes are reached through the first node and"
            if public_address == "nat"
            else "nodes have only private addresses and"
        )
        yield f"{jump} connect to the Internet through a NAT gateway"
        addresses = f"the {BEHIND_NAT} Elastic IPs" if public_address == "nat" else "its Elastic IP"
        yield f"the gateway and {addresses} are billed {until}"
        cost = "extra, at an unknown price" if gateway_gb_usd is None else f"an additional {gateway_gb_usd} USD/GB"
        yield f"traffic through the NAT gateway costs {cost}; S3 traffic in the region bypasses the gateway"
