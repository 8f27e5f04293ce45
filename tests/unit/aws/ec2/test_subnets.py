"""Read a VPC from scripted responses: default routes, network ACLs, unusable subnets, and what cannot be read."""

from typing import Any

import pytest
from botocore.stub import ANY

from cloudgpu.aws.ec2.subnets import region_network, region_networks, zone_names
from cloudgpu.errors import AuthError, CloudError
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.subnets import SubnetSeen

VPC = "vpc-0a1b2c3d4e5f60718"
LOCAL = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}


def to(target: str, key: str = "GatewayId", cidr: str = "0.0.0.0/0", state: str = "active") -> dict[str, str]:
    return {"DestinationCidrBlock": cidr, key: target, "State": state}


def subnet(name: str = "subnet-1", **members: Any) -> dict[str, Any]:
    known = {"AvailabilityZone": "us-east-1a", "CidrBlock": "10.0.0.0/24", "AvailableIpAddressCount": 250}
    return {"SubnetId": name, "VpcId": VPC, "State": "available", **known, **members}


def table(*routes: dict[str, str], subnets: tuple[str, ...] = ()) -> dict[str, Any]:
    links = [{"SubnetId": name} for name in subnets] or [{"Main": True}]
    return {"Associations": links, "Routes": [LOCAL, *routes]}


def entry(number: int, action: str, *, egress: bool = False, port: int = 0, cidr: str = "0.0.0.0/0") -> dict[str, Any]:
    rule = {"RuleNumber": number, "RuleAction": action, "Egress": egress, "CidrBlock": cidr, "Protocol": "-1"}
    return {**rule, "Protocol": "6", "PortRange": {"From": port, "To": port}} if port else rule


def acl(*entries: dict[str, Any], subnets: tuple[str, ...] = ("subnet-1",)) -> dict[str, Any]:
    return {"Associations": [{"SubnetId": name} for name in subnets], "Entries": list(entries)}


def answer(scripted: Any, subnets: list[Any], tables: list[Any] | None, acls: list[Any] | None = None) -> None:
    """Script the responses about the default VPC; None for tables or ACLs that the caller may not read."""
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_vpcs", {"Vpcs": [{"VpcId": VPC}]}, {"Filters": ANY})
    ec2.add_response("describe_subnets", {"Subnets": subnets}, {"Filters": [{"Name": "vpc-id", "Values": [VPC]}]})
    for operation, key, rows in (
        ("describe_route_tables", "RouteTables", tables),
        ("describe_network_acls", "NetworkAcls", [] if acls is None else acls),
    ):
        if rows is None:
            ec2.add_client_error(operation, "UnauthorizedOperation", http_status_code=403)
        else:
            ec2.add_response(operation, {key: rows}, {"Filters": ANY})


def only(scripted: Any, request: NetworkRequest = NO_REQUEST) -> SubnetSeen:
    (found,) = region_network(scripted, request).subnets
    scripted.done()
    return found


ROUTES = {
    "internet gateway in the main table": ([table(to("igw-1"))], "public", "igw-1"),
    "own table before the main table": (
        [table(to("igw-1")), table(to("nat-1", "NatGatewayId"), subnets=("subnet-1",))],
        "nat",
        "nat-1",
    ),
    "table of another subnet": ([table(), table(to("igw-1"), subnets=("subnet-2",))], "none", ""),
    "route without a target": ([table(to("igw-1", state="blackhole"))], "none", ""),
    "route to a part of the internet": ([table(to("igw-1", cidr="198.51.100.0/24"))], "none", ""),
    "two halves of the internet": (
        [table(to("igw-1", cidr="0.0.0.0/1"), to("igw-1", cidr="128.0.0.0/1"))],
        "public",
        "igw-1",
    ),
    "NAT, and the caller's range through the gateway": (
        [table(to("nat-1", "NatGatewayId"), to("igw-1", cidr="198.51.100.7/32"))],
        "nat",
        "nat-1",
    ),
    "NAT instance": ([table(to("eni-1", "NetworkInterfaceId"))], "nat", "eni-1"),
    "transit gateway": ([table(to("tgw-1", "TransitGatewayId"))], "other", "tgw-1"),
    "VPN": ([table(to("vgw-1"))], "other", "vgw-1"),
    "firewall": ([table(to("vpce-1"))], "firewall", "vpce-1"),
    "IPv6 only": ([table({"DestinationIpv6CidrBlock": "::/0", "GatewayId": "igw-1", "State": "active"})], "none", ""),
    "no access to the tables": (None, "unknown", ""),
}


@pytest.mark.parametrize("case", ROUTES)
def test_default_route_of(scripted: Any, case: str) -> None:
    tables, way_out, target = ROUTES[case]
    answer(scripted, [subnet()], tables)
    found = only(scripted)
    assert (found.way_out, found.target) == (way_out, target)


@pytest.mark.parametrize(
    ("members", "unusable"),
    [
        ({"State": "pending"}, "is pending"),
        ({"Ipv6Native": True, "CidrBlock": ""}, "has only IPv6 addresses"),
        ({"OutpostArn": "arn:aws:outposts:us-east-1:1:outpost/op-1"}, "is on an Outpost"),
        ({}, ""),
    ],
)
def test_subnets_for_other_uses_are_recognised(scripted: Any, members: dict[str, Any], unusable: str) -> None:
    answer(scripted, [subnet(**members)], [table(to("igw-1"))])
    assert only(scripted).unusable == unusable


@pytest.mark.parametrize(
    ("mode", "closed", "cut_off"),
    [("off", False, False), ("block-ingress", True, False), ("block-bidirectional", True, True)],
)
def test_vpc_block_public_access_closes_a_subnet(scripted: Any, mode: str, closed: bool, cut_off: bool) -> None:
    answer(scripted, [subnet(BlockPublicAccessStates={"InternetGatewayBlockMode": mode})], [table(to("igw-1"))])
    found = only(scripted)
    assert (bool(found.closed), bool(found.cut_off)) == (closed, cut_off)


OPEN = (entry(100, "allow"), entry(100, "allow", egress=True))


@pytest.mark.parametrize(
    ("entries", "closed", "cut_off"),
    [
        (OPEN, False, False),
        ((entry(90, "deny", port=22), *OPEN), True, False),
        ((entry(90, "deny", port=22, cidr="203.0.113.0/24"), *OPEN), False, False),
        ((entry(90, "allow", port=22), entry(100, "deny"), OPEN[1]), False, True),
        ((entry(90, "deny", port=443, egress=True), *OPEN), False, True),
        ((OPEN[0], entry(100, "deny", egress=True)), True, True),
        ((entry(90, "allow", port=22, cidr="203.0.113.0/24"), entry(95, "allow", port=49152), OPEN[1]), False, False),
    ],
)
def test_network_acl_closes_a_subnet_only_if_it_rejects_every_address(
    scripted: Any, entries: tuple[Any, ...], closed: bool, cut_off: bool
) -> None:
    answer(scripted, [subnet()], [table(to("igw-1"))], [acl(*entries)])
    found = only(scripted)
    assert (bool(found.closed), bool(found.cut_off)) == (closed, cut_off)


def test_rehearsal_server_of_an_earlier_version_lists_no_route_of_the_default_vpc(scripted: Any) -> None:
    answer(scripted, [subnet(DefaultForAz=True)], [table()])
    (found,) = region_network(scripted, NO_REQUEST, simulated=True).subnets
    assert found.way_out == "public"
    answer(scripted, [subnet(DefaultForAz=True)], [table(), table(subnets=("subnet-1",))])
    (own,) = region_network(scripted, NO_REQUEST, simulated=True).subnets
    assert own.way_out == "none"


def test_size_free_addresses_and_kind_are_read(scripted: Any) -> None:
    answer(scripted, [subnet(DefaultForAz=True, MapPublicIpOnLaunch=True)], [table(to("igw-1"))])
    found = only(scripted)
    assert (found.size, found.free, found.is_default, found.maps_public) == (251, 250, True, True)


def test_region_without_default_vpc_is_missing(scripted: Any) -> None:
    scripted.stub("ec2").add_response("describe_vpcs", {"Vpcs": []}, {"Filters": ANY})
    found = region_networks(lambda _: scripted, [scripted.region], NO_REQUEST)[scripted.region]
    assert (found.missing, found.is_default) == (f"{scripted.region} has no default VPC", True)


def test_security_group_decides_the_vpc(scripted: Any) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_security_groups", {"SecurityGroups": [{"VpcId": VPC}]}, {"GroupIds": ["sg-1"]})
    ec2.add_response("describe_subnets", {"Subnets": [subnet()]}, {"Filters": [{"Name": "vpc-id", "Values": [VPC]}]})
    ec2.add_response("describe_route_tables", {"RouteTables": []}, {"Filters": ANY})
    ec2.add_response("describe_network_acls", {"NetworkAcls": []}, {"Filters": ANY})
    found = region_network(scripted, NetworkRequest(security_group_id="sg-1"))
    assert (found.vpc_id, found.is_default) == (VPC, False)


def test_resources_of_different_vpcs_are_a_contradiction(scripted: Any) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_response("describe_subnets", {"Subnets": [subnet()]}, {"SubnetIds": ["subnet-1"]})
    ec2.add_response("describe_security_groups", {"SecurityGroups": [{"VpcId": "vpc-2"}]}, {"GroupIds": ["sg-1"]})
    found = region_network(scripted, NetworkRequest(subnet_id="subnet-1", security_group_id="sg-1"))
    assert found.missing == (f"the settings name resources of different VPCs: subnet-1 is in {VPC}, sg-1 is in vpc-2")


@pytest.mark.parametrize("code", ["InvalidVpcID.NotFound", "InvalidVpcID.Malformed"])
def test_vpc_that_does_not_exist_is_missing(scripted: Any, code: str) -> None:
    scripted.stub("ec2").add_client_error("describe_vpcs", code, "no such VPC")
    assert "no such VPC" in region_network(scripted, NetworkRequest(vpc_id="vpc-9")).missing


def test_denied_access_is_unknown_and_other_errors_are_raised(scripted: Any) -> None:
    scripted.stub("ec2").add_client_error("describe_vpcs", "UnauthorizedOperation", "denied", http_status_code=403)
    assert "denied" in region_network(scripted, NO_REQUEST).unknown
    scripted.stub("ec2").add_client_error("describe_vpcs", "ExpiredToken")
    with pytest.raises(AuthError):
        region_network(scripted, NO_REQUEST)
    scripted.stub("ec2").add_client_error("describe_vpcs", "InternalError", http_status_code=500)
    with pytest.raises(CloudError):
        region_network(scripted, NO_REQUEST)


def test_zone_names_are_sorted(scripted: Any) -> None:
    zones = [{"ZoneName": "us-east-1b"}, {"ZoneName": "us-east-1a"}]
    scripted.stub("ec2").add_response("describe_availability_zones", {"AvailabilityZones": zones}, {"Filters": ANY})
    assert zone_names(scripted) == ("us-east-1a", "us-east-1b")
