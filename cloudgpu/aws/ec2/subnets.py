"""Read the VPC in which nodes would run: its subnets, their routes and network ACLs."""

import ipaddress
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cloudgpu import bounds
from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import AuthError, BadRequestError, CloudGpuError
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.subnets import RegionNetwork, SubnetSeen, WayOut, usable_addresses
from cloudgpu.workers import Workers

_AT_ONCE: Final = 8
_DENIED: Final = frozenset({"UnauthorizedOperation", "AccessDenied", "AccessDeniedException"})
_EVERYWHERE: Final = ipaddress.IPv4Network("0.0.0.0/0")
_MOST_ADDRESSES: Final = 2**32
_SSH, _HTTPS, _REPLIES = 22, 443, 49152
"""Ports that nodes need: SSH, downloads, and a port to which replies to both are sent."""
_ANY_PROTOCOL, _TCP = "-1", "6"
_INGRESS, _EGRESS = False, True

Row = Mapping[str, Any]


def region_networks(
    clients_for: Callable[[str], Clients], regions: Sequence[str], request: NetworkRequest, *, simulated: bool = False
) -> Mapping[str, RegionNetwork]:
    """Return the network that each region's nodes would run in.

    A `simulated` cloud may be a rehearsal server of an earlier version, which does not list the default route of a
    default VPC.
    """
    with Workers(_AT_ONCE) as workers:
        networks = workers.map(
            lambda region: region_network(clients_for(region), request, simulated=simulated), regions
        )
        return dict(zip(regions, networks, strict=True))


def region_network(clients: Clients, request: NetworkRequest, *, simulated: bool = False) -> RegionNetwork:
    """Return the network of the VPC that the settings name, or of the region's default VPC."""
    try:
        with convert_response_errors(f"reading the VPC and its subnets in {clients.region}"):
            network = _network(clients, request, simulated=simulated)
    except AuthError as err:
        if err.code not in _DENIED:
            raise
        return RegionNetwork(unknown=err.message)
    except CloudGpuError as err:
        # `InvalidVpcID.Malformed` and the like: AWS cannot find it either.
        if is_gone(err) or (isinstance(err, BadRequestError) and err.code.endswith(".Malformed")):
            return RegionNetwork(missing=err.message)
        raise
    return network


def zone_names(clients: Clients) -> tuple[str, ...]:
    """Return the region's zones, except local and Wavelength zones."""
    filters = [{"Name": "zone-type", "Values": ["availability-zone"]}]
    with convert_response_errors(f"listing the zones of {clients.region}"):
        rows = clients.client("ec2").describe_availability_zones(Filters=filters)["AvailabilityZones"]
        return tuple(sorted(str(row["ZoneName"]) for row in rows))


def _network(clients: Clients, request: NetworkRequest, *, simulated: bool) -> RegionNetwork:
    ec2 = clients.client("ec2")
    vpcs = dict(_named_vpcs(ec2, request))
    if len(set(vpcs.values())) > 1:
        places = ", ".join(f"{name} is in {vpc}" for name, vpc in vpcs.items() if name != vpc)
        return RegionNetwork(missing=f"the settings name resources of different VPCs: {places}")
    default = [] if vpcs else ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    if not vpcs and not default:
        return RegionNetwork(missing=f"{clients.region} has no default VPC", is_default=True)
    vpc_id = next(iter(vpcs.values())) if vpcs else str(default[0]["VpcId"])
    where = [{"Name": "vpc-id", "Values": [vpc_id]}]
    subnets = _pages(ec2, "describe_subnets", "Subnets", where)
    if request.subnet_id:
        subnets = [row for row in subnets if row["SubnetId"] == request.subnet_id]
    tables = _readable(lambda: _pages(ec2, "describe_route_tables", "RouteTables", where))
    acls = _readable(lambda: _pages(ec2, "describe_network_acls", "NetworkAcls", where)) or []
    seen = [_with_acl(_with_route(_subnet(row), tables, simulated=simulated), acls) for row in subnets]
    return RegionNetwork(vpc_id, not vpcs, tuple(sorted(seen, key=lambda subnet: subnet.id)))


def _named_vpcs(ec2: Any, request: NetworkRequest) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - a boto3 client
    """Yield the VPC of each resource that the settings name, with the resource's ID."""
    if request.vpc_id:
        yield request.vpc_id, str(ec2.describe_vpcs(VpcIds=[request.vpc_id])["Vpcs"][0]["VpcId"])
    if request.subnet_id:
        yield request.subnet_id, str(ec2.describe_subnets(SubnetIds=[request.subnet_id])["Subnets"][0]["VpcId"])
    if request.security_group_id:
        group = ec2.describe_security_groups(GroupIds=[request.security_group_id])["SecurityGroups"][0]
        yield request.security_group_id, str(group["VpcId"])


def _pages(ec2: Any, operation: str, key: str, filters: list[dict[str, Any]]) -> list[Row]:  # noqa: ANN401
    return [row for page in ec2.get_paginator(operation).paginate(Filters=filters) for row in page[key]]


def _readable(read: Callable[[], list[Row]]) -> list[Row] | None:
    """Return the rows, or None if the caller may not read them."""
    try:
        with convert_response_errors("reading the routes of the VPC"):
            return read()
    except AuthError as err:
        if err.code not in _DENIED:
            raise
        return None


def _subnet(row: Row) -> SubnetSeen:
    network = ipaddress.IPv4Network(row.get("CidrBlock") or "0.0.0.0/32", strict=False)
    mode = (row.get("BlockPublicAccessStates") or {}).get("InternetGatewayBlockMode") or "off"
    blocked = "is blocked from the internet by VPC Block Public Access"
    return SubnetSeen(
        id=str(row["SubnetId"]),
        zone=str(row["AvailabilityZone"]),
        is_default=bool(row.get("DefaultForAz")),
        maps_public=bool(row.get("MapPublicIpOnLaunch")),
        size=usable_addresses(network.prefixlen),
        free=bounds.checked_count(row.get("AvailableIpAddressCount") or 0, 0, _MOST_ADDRESSES),
        unusable=next(_unusable(row), ""),
        closed="" if mode == "off" else blocked,
        cut_off=blocked if mode == "block-bidirectional" else "",
    )


def _unusable(row: Row) -> Iterator[str]:
    state = str(row.get("State") or "available")
    if state != "available":
        yield f"is {state}"
    if row.get("Ipv6Native"):
        yield "has only IPv6 addresses"
    if row.get("OutpostArn"):
        yield "is on an Outpost"
    if row.get("Type"):
        yield f"is reserved for {row['Type']}"


def _with_route(subnet: SubnetSeen, tables: list[Row] | None, *, simulated: bool) -> SubnetSeen:
    """Add where the default route of the subnet's own route table leads, or else of the VPC's main table."""
    if tables is None:
        return subnet
    own = [table for table in tables if any(subnet.id == link.get("SubnetId") for link in _links(table))]
    main = [table for table in tables if any(link.get("Main") for link in _links(table))]
    routes = [route for table in (own or main)[:1] for route in table.get("Routes") or ()]
    way_out, target = _way_out([route for route in routes if route.get("State", "active") == "active"])
    if simulated and subnet.is_default and not own and way_out == "none":
        way_out = "public"
    return replace(subnet, way_out=way_out, target=target)


def _links(table: Row) -> Sequence[Row]:
    return table.get("Associations") or ()


def _way_out(routes: Sequence[Row]) -> tuple[WayOut, str]:
    """Return where routes to the whole internet lead, and the target of the widest route of that kind."""
    targets = [(ipaddress.IPv4Network(route["DestinationCidrBlock"]), *_target(route)) for route in _ipv4(routes)]
    kinds: tuple[WayOut, ...] = ("public", "firewall", "nat", "other")
    for kind in kinds:
        here = [(network, name) for network, of_kind, name in targets if of_kind == kind]
        # Two routes to halves of the address space are as good as one default route.
        if _EVERYWHERE in ipaddress.collapse_addresses(network for network, _ in here):
            return kind, min(here, key=lambda row: row[0].prefixlen)[1]
    return "none", ""


def _ipv4(routes: Sequence[Row]) -> Iterator[Row]:
    return (route for route in routes if route.get("DestinationCidrBlock") and _target(route)[1])


def _target(route: Row) -> tuple[WayOut, str]:
    """Return the kind of a route's target and its ID; no ID for a route within the VPC."""
    gateway = str(route.get("GatewayId") or "")
    if gateway.startswith("igw-"):
        return "public", gateway
    if gateway.startswith("vpce-"):
        return "firewall", gateway
    nat = route.get("NatGatewayId") or route.get("NetworkInterfaceId") or route.get("InstanceId")
    if nat:
        return "nat", str(nat)
    others = ("TransitGatewayId", "VpcPeeringConnectionId", "CoreNetworkArn", "LocalGatewayId", "CarrierGatewayId")
    other = next((str(route[name]) for name in others if route.get(name)), gateway if gateway != "local" else "")
    return "other", other


def _with_acl(subnet: SubnetSeen, acls: Sequence[Row]) -> SubnetSeen:
    """Add whether the subnet's network ACL rejects the nodes' traffic from and to every address."""
    entries = [
        entry
        for acl in acls
        if any(link.get("SubnetId") == subnet.id for link in acl.get("Associations") or ())
        for entry in acl.get("Entries") or ()
    ]
    if not entries:
        return subnet
    if _rejects(entries, _HTTPS, _EGRESS) or _rejects(entries, _REPLIES, _INGRESS):
        subnet = replace(subnet, cut_off=subnet.cut_off or "has a network ACL that rejects the nodes' downloads")
    if _rejects(entries, _SSH, _INGRESS) or _rejects(entries, _REPLIES, _EGRESS):
        subnet = replace(subnet, closed=subnet.closed or "has a network ACL that rejects SSH")
    return subnet


def _rejects(entries: Sequence[Row], port: int, egress: bool) -> bool:  # noqa: FBT001
    """Return True if the rules reject TCP traffic with a port, regardless of the other address.

    A rule that allows any range of addresses may allow the caller's, so that the answer is then False.
    """
    rules = [entry for entry in entries if bool(entry.get("Egress")) == egress and _covers(entry, port)]
    for rule in sorted(rules, key=lambda entry: int(entry.get("RuleNumber") or 0)):
        if rule.get("RuleAction") == "allow":
            return False
        if rule.get("CidrBlock") == str(_EVERYWHERE):
            return True
    return True


def _covers(entry: Row, port: int) -> bool:
    if not entry.get("CidrBlock") or str(entry.get("Protocol")) not in (_ANY_PROTOCOL, _TCP):
        return False
    span = entry.get("PortRange") or {}
    return str(entry.get("Protocol")) == _ANY_PROTOCOL or int(span.get("From", 0)) <= port <= int(span.get("To", 65535))
