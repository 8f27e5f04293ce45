"""Decide which subnet the nodes of a zone are launched into, from the routes and the free addresses of a VPC."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.errors import PlanError
from cloudgpu.plan.network_access import (
    DEFAULT_ELASTIC_IPS,
    GATEWAYS,
    NetworkRequest,
    PublicAddress,
    Reach,
    choose_public_address,
)
from cloudgpu.text import command

WayOut = Literal["public", "firewall", "nat", "other", "none", "unknown"]
"""Where a subnet's default route leads. `public`: to an internet gateway. `firewall`: to the endpoint of a firewall or
load balancer. `nat`: to a NAT gateway or NAT instance. `other`: to another network, such as a transit gateway or a VPN.
`unknown`: the caller may not read the route tables."""

_REACHABLE: Final[frozenset[WayOut]] = frozenset({"public", "firewall", "unknown"})
"""Default routes with which the internet can reach a public address."""
_ROUTED: Final[frozenset[WayOut]] = frozenset({"firewall", "nat", "other", "unknown"})
"""Default routes with which a node without a public address reaches the internet."""
_ROUTES: Final = {
    "public": "a route to the internet gateway",
    "firewall": "a route to the endpoint",
    "nat": "a route to the NAT gateway",
    "other": "a route to",
    "none": "no default route",
    "unknown": "unknown routes",
}
_SHOWN: Final = 3
"""Maximum number of unsuitable subnets of a zone in a message."""
_RESERVED: Final = 5
"""Addresses of each subnet that AWS reserves."""
_DASHES: Final = 3
"""Maximum number of dashes in the name of a zone of a region, such as `us-gov-west-1a`."""
_INTERFACES: Final = {"efs": 1, "lustre": 2}
"""Kind of file system -> the least number of addresses of its interfaces in a subnet. Lustre has at least a metadata
server and an object storage server."""


@dataclass(frozen=True)
class SubnetSeen:
    """A subnet as AWS describes it.

    Attributes:
        size: Number of private IPv4 addresses that nodes can have.
        free: Number of these addresses that are unused.
        target: Target of the default route, such as `igw-0123456789abcdef0`; empty if there is none.
        unusable: Why no node can run in the subnet; empty if nodes can.
        closed: Why SSH from the internet cannot enter, although there is a route; empty if it can.
        cut_off: Why nodes cannot reach the internet, although there is a route; empty if they can.
    """

    id: str
    zone: str
    is_default: bool = False
    maps_public: bool = False
    size: int = 0
    free: int = 0
    way_out: WayOut = "unknown"
    target: str = ""
    unusable: str = ""
    closed: str = ""
    cut_off: str = ""

    @property
    def route(self) -> str:
        """Where the default route leads, as text."""
        return f"{_ROUTES[self.way_out]} {self.target}".strip()

    @property
    def description(self) -> str:
        """Why the subnet was chosen: its kind and its default route."""
        return f"{'default subnet, ' if self.is_default else ''}{self.route}"


@dataclass(frozen=True)
class RegionNetwork:
    """The VPC in which the nodes of a region run, with its subnets.

    Attributes:
        missing: Why there is no usable VPC; empty if there is one.
        unknown: Why the VPC could not be read; empty if it was read.
    """

    vpc_id: str = ""
    is_default: bool = False
    subnets: tuple[SubnetSeen, ...] = ()
    missing: str = ""
    unknown: str = ""

    @property
    def name(self) -> str:
        """Name of the VPC for messages."""
        return f"{'the default VPC ' if self.is_default else ''}{self.vpc_id}"


@dataclass(frozen=True)
class SubnetNeed:
    """What the nodes need of their subnet, or a file system of a subnet of its clients.

    Attributes:
        addresses: Number of private addresses. Interfaces of type `efa-only` have none.
        named: ID of the subnet that the user selected; empty if the plan selects one.
        needing: What needs the addresses, for messages.
    """

    public_address: PublicAddress
    reach: Reach
    addresses: int
    named: str = ""
    needing: str = "the nodes need"


@dataclass(frozen=True)
class SubnetDecision:
    """The subnet for one zone, or why there is none.

    Attributes:
        short: Whether the subnet is large enough, but has too few free addresses at present.
        fix: A change that would make the zone usable; empty if the zone is usable.
    """

    subnet: SubnetSeen | None
    why: str
    fix: str = ""
    short: bool = False


def choose_subnet(network: RegionNetwork, zone: str, need: SubnetNeed) -> SubnetDecision:
    """Return the subnet of a zone whose nodes can be reached as planned, with enough free addresses.

    Default subnets come first, then subnets that assign public addresses to nodes that need one, then the lowest ID, so
    that the next plan chooses the same subnet.
    """
    here = [subnet for subnet in network.subnets if subnet.zone == zone and need.named in ("", subnet.id)]
    if not here:
        return _no_subnet(network, zone, need)
    fitting = [subnet for subnet in here if not unsuitable(subnet, need)]
    if not fitting:
        reasons = [f"{subnet.id} {unsuitable(subnet, need)}" for subnet in here]
        more = [f"{len(reasons) - _SHOWN} more"] if len(reasons) > _SHOWN else []
        return SubnetDecision(None, f"{zone}: {'; '.join(reasons[:_SHOWN] + more)}", _fix(need, here))
    is_public = need.public_address in ("auto", "elastic")

    def order(subnet: SubnetSeen) -> tuple[bool, bool, bool, str]:
        return (subnet.free < need.addresses, not subnet.is_default, subnet.maps_public != is_public, subnet.id)

    best = min(fitting, key=order)
    if best.free >= need.addresses:
        return SubnetDecision(best, best.description)
    why = f"{best.id} has {best.free} free private addresses, but {need.needing} {need.addresses}"
    return SubnetDecision(
        best, why, "delete unused network interfaces, or set subnet_id to a larger subnet", short=True
    )


def unsuitable(subnet: SubnetSeen, need: SubnetNeed) -> str:
    """Explain why the nodes cannot run in a subnet, or would not be reachable there; empty if they can."""
    if subnet.unusable:
        return subnet.unusable
    if subnet.size < need.addresses:
        return f"has only {subnet.size} addresses, but {need.needing} {need.addresses}"
    return next(_unreachable(subnet, need), "")


def _unreachable(subnet: SubnetSeen, need: SubnetNeed) -> Iterator[str]:
    if need.named and need.public_address == "private":
        return  # the caller knows how to reach the subnet, and what it can reach
    if subnet.cut_off:
        yield subnet.cut_off
    if need.public_address == "private":
        if subnet.way_out not in _ROUTED:
            yield f"has {subnet.route}, so nodes without a public address cannot reach the internet"
    elif need.reach == "direct" or need.public_address == "elastic":
        yield from _closed_to_callers(subnet, need)
    elif subnet.way_out == "none":
        yield "has no default route, so nodes cannot reach the internet"


def _closed_to_callers(subnet: SubnetSeen, need: SubnetNeed) -> Iterator[str]:
    """Yield why SSH from the internet would not reach a node with a public address."""
    if subnet.way_out not in _REACHABLE:
        yield f"has {subnet.route}" + ("" if subnet.way_out == "none" else ", but none to an internet gateway")
    elif subnet.closed and need.reach == "direct":
        yield subnet.closed
    elif need.named and need.public_address == "auto" and not subnet.maps_public:
        yield "does not assign public addresses"


def _no_subnet(network: RegionNetwork, zone: str, need: SubnetNeed) -> SubnetDecision:
    if need.named:
        places = [subnet.zone for subnet in network.subnets if subnet.id == need.named]
        where = f"is in {places[0]}, not in {zone}" if places else f"is not in {network.name}"
        return SubnetDecision(None, f"{need.named} {where}", "change or remove the setting subnet_id")
    create = command("aws", "ec2", "create-default-subnet", "--availability-zone", zone)
    fix = f"`{create}`" if network.is_default else f"create a subnet in {zone}"
    return SubnetDecision(None, f"{network.name} has no subnet in {zone}", fix)


def _fix(need: SubnetNeed, subnets: Iterable[SubnetSeen]) -> str:
    """Return what makes nodes reachable in a zone without a suitable subnet."""
    if need.public_address == "private":
        return "add a route to a NAT gateway, or name the subnet in subnet_id to use it anyway"
    if need.public_address == "auto" and any(subnet.way_out in _ROUTED for subnet in subnets):
        return (
            "set public_address to private if you can reach private addresses, or reach to ssm; "
            "or set create_vpc to true"
        )
    return "add a route to an internet gateway, choose another subnet, or set create_vpc to true"


def in_private_subnet(network: RegionNetwork, request: NetworkRequest) -> bool:
    """Return True if the user's subnet neither assigns public addresses nor has a route to an internet gateway."""
    if not request.subnet_id or request.reach == "ssm":
        return False
    own = [subnet for subnet in network.subnets if subnet.id == request.subnet_id]
    return any(not subnet.maps_public and subnet.way_out in ("nat", "other", "none") for subnet in own)


def network_problem(network: RegionNetwork, region: str, public_address: PublicAddress, named: str) -> tuple[str, str]:
    """Explain why a region's VPC cannot be used, and what helps. Return empty texts if it can."""
    if network.missing:
        default = command("aws", "ec2", "create-default-vpc", "--region", region)
        own = f"set vpc_id, set create_vpc to true, or run `{default}`"
        return network.missing, own if network.is_default else "correct the settings: `cloudgpu config`"
    if network.unknown and public_address == "private" and not named:
        return f"cannot tell which subnets of {region} are private: {network.unknown}", "set subnet_id"
    return "", ""


@dataclass(frozen=True)
class MountSubnets:
    """The subnets from which a new file system is mounted.

    Attributes:
        chosen: Zone -> subnet. Empty if the VPC could not be read, so that the program chooses the subnets.
        excluded: Zone -> why the zone has no suitable subnet.
    """

    network: RegionNetwork
    chosen: Mapping[str, SubnetSeen]
    excluded: Mapping[str, SubnetDecision]

    @property
    def ids(self) -> dict[str, str]:
        """Zone -> ID of the subnet."""
        return {zone: subnet.id for zone, subnet in self.chosen.items()}


def mount_need(kind: str, network: RegionNetwork, request: NetworkRequest) -> SubnetNeed:
    """Return what a file system needs of its subnets: those of the nodes that the settings create.

    Network ACLs do not apply within a subnet, and EFS's name resolves only in zones with a mount target.
    """
    public_address = choose_public_address(request, 1, DEFAULT_ELASTIC_IPS, several=False)
    # Nodes behind a NAT gateway get a VPC of their own; other nodes may still mount the file system.
    public_address = "auto" if public_address in GATEWAYS else public_address
    if public_address == "auto" and in_private_subnet(network, request):
        public_address = "private"
    return SubnetNeed(public_address, request.reach, _INTERFACES[kind], request.subnet_id, "the file system needs")


def choose_mount_subnets(
    network: RegionNetwork, zone: str, need: SubnetNeed, planned: Mapping[str, str] | None = None
) -> MountSubnets:
    """Return the subnet of a zonal file system, or one subnet per zone if `zone` is empty.

    Subnets with too few free addresses are excluded: nothing would free them during the creation. `planned` contains
    the subnets of nodes that will mount the file system, by zone; in these zones, no other subnet is chosen.
    """
    if network.unknown:
        return MountSubnets(network, {}, {})
    named = {subnet.zone for subnet in network.subnets if subnet.id == need.named}
    zones = {zone} if zone else named or {subnet.zone for subnet in network.subnets if not _is_local(subnet.zone)}
    by_id = {subnet.id: subnet for subnet in network.subnets}
    chosen: dict[str, SubnetSeen] = {}
    excluded: dict[str, SubnetDecision] = {}
    for name in sorted(zones):
        decision = choose_subnet(network, name, need)
        subnet = by_id.get((planned or {}).get(name, "")) or (None if decision.short else decision.subnet)
        if subnet is None:
            excluded[name] = decision
        else:
            chosen[name] = subnet
    return MountSubnets(network, chosen, excluded)


def require_mount_subnets(what: str, network: RegionNetwork, place: tuple[str, str], need: SubnetNeed) -> MountSubnets:
    """Return the subnets for the new file system `what` in a region and zone; the zone is empty if it is not zonal."""
    region, zone = place
    problem, fix = network_problem(network, region, need.public_address, need.named)
    chosen = choose_mount_subnets(network, zone, need)
    if not problem and (chosen.chosen or network.unknown):
        return chosen
    refused = [SubnetDecision(None, problem or f"{network.name} has no subnet", fix)]
    if not problem:
        refused = list(chosen.excluded.values()) or refused
    message = f"{what} has no suitable subnet in {region}"
    raise PlanError(message, findings=[decision.why for decision in refused], hint=refused[0].fix)


def places_by_reason(network: RegionNetwork, chosen: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """Yield one line for each reason for which subnets were chosen. `chosen` has zones, subnet IDs and reasons."""
    by_reason: dict[str, dict[str, str]] = {}
    for zone, subnet, reason in chosen:
        by_reason.setdefault(reason, {})[zone] = subnet
    for reason, subnets in by_reason.items():
        places = ", ".join(f"{subnet} in {zone}" for zone, subnet in sorted(subnets.items()))
        yield f"{network.name}: {places}: {reason}"


def _is_local(zone: str) -> bool:
    """Return True for a local or Wavelength zone, such as `us-east-1-bos-1a`, in which EFS has no mount targets."""
    return zone.count("-") > _DASHES


def usable_addresses(prefix_length: int) -> int:
    """Return how many addresses a subnet with this prefix length has for nodes."""
    return max(0, (1 << (32 - prefix_length)) - _RESERVED)
