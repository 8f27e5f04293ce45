"""The cluster's VPC, and access to nodes without an auto-assigned public address."""

import json
from typing import Any

import pulumi
import pytest
from program_mock import Recorder, run_program

P4D = {"instanceType": "p4d.24xlarge", "efaInterfaces": "4"}


def names(recorder: Recorder, suffix: str) -> list[str]:
    return sorted(one.name for one in recorder.resources if one.typ.endswith(f":{suffix}"))


def test_created_vpc_has_one_subnet_per_zone_and_internet_gateway() -> None:
    recorder = run_program(createVpc="true")
    subnets = {one["availabilityZone"]: one["cidrBlock"] for one in recorder.of("Subnet")}
    assert subnets == {"us-east-1a": "10.84.0.0/19", "us-east-1c": "10.84.64.0/19"}
    assert all(one["mapPublicIpOnLaunch"] for one in recorder.of("Subnet"))
    assert recorder.one("RouteTable")["routes"] == [{"cidrBlock": "0.0.0.0/0", "gatewayId": "internetgateway-id"}]
    assert names(recorder, "RouteTableAssociation") == ["demo-us-east-1a", "demo-us-east-1c"]
    assert "aws:ec2/getVpc:getVpc" not in {call.token for call in recorder.calls}


def test_zone_cidr_blocks_are_stable_and_do_not_overlap() -> None:
    """Trying another zone later must find its subnet unchanged."""
    first, second = (
        {one["availabilityZone"]: one["cidrBlock"] for one in run_program(createVpc="true", zone=zone).of("Subnet")}
        for zone in ("us-east-1c", "us-east-1a")
    )
    assert first == second
    outside = run_program(createVpc="true", zone="us-east-1-bos-1a").of("Subnet")
    assert len({one["cidrBlock"] for one in outside}) == 3


def test_created_vpc_has_an_s3_gateway_endpoint() -> None:
    endpoint = run_program(createVpc="true").one("VpcEndpoint")
    assert endpoint["serviceName"] == "com.amazonaws.us-east-1.s3"
    assert endpoint["vpcEndpointType"] == "Gateway"
    assert endpoint["routeTableIds"] == ["routetable-id"]


def interfaces(recorder: Recorder) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = recorder.one("LaunchTemplate")["networkInterfaces"]
    return found


def test_every_node_gets_an_elastic_ip_on_its_first_interface() -> None:
    recorder = run_program(**P4D, nodes="3", publicAddress="elastic")
    assert names(recorder, "Eip") == ["demo-0", "demo-1", "demo-2"]
    assert all(one["domain"] == "vpc" for one in recorder.of("Eip"))
    at = {
        one.name: one.inputs["networkInterfaceId"] for one in recorder.resources if one.typ.endswith("EipAssociation")
    }
    assert at == {"demo-0": "eni-of-i-a-0", "demo-1": "eni-of-i-b-0", "demo-2": "eni-of-i-c-0"}
    assert recorder.of("NatGateway") == []
    assert not any("associatePublicIpAddress" in one for one in interfaces(recorder))
    assert recorder.exports["publicAddress"] == "elastic"


def test_only_the_first_node_behind_nat_has_a_public_address() -> None:
    recorder = run_program(**P4D, nodes="3", publicAddress="nat")
    assert names(recorder, "Eip") == ["demo-0", "demo-nat"]
    assert names(recorder, "EipAssociation") == ["demo-0"]
    assert recorder.one("NatGateway")["allocationId"] == "eip-id"
    assert not any("associatePublicIpAddress" in one for one in interfaces(recorder))


def test_nat_cluster_routes_caller_traffic_through_the_internet_gateway() -> None:
    """Replies through the NAT gateway would come from another address, and SSH would never connect."""
    recorder = run_program(**P4D, publicAddress="nat", sshCidr="198.51.100.7/32, 2001:db8::7/128")
    assert recorder.named("RouteTable", "demo")["routes"] == [
        {"cidrBlock": "0.0.0.0/0", "natGatewayId": "natgateway-id"},
        {"cidrBlock": "198.51.100.7/32", "gatewayId": "internetgateway-id"},
    ]
    assert recorder.named("RouteTable", "demo-nat")["routes"] == [
        {"cidrBlock": "0.0.0.0/0", "gatewayId": "internetgateway-id"}
    ]
    gate = recorder.named("Subnet", "demo-nat-us-east-1c")
    assert (gate["cidrBlock"], gate["availabilityZone"]) == ("10.84.226.0/24", "us-east-1c")
    assert not any(one["mapPublicIpOnLaunch"] for one in recorder.of("Subnet"))


def test_single_interface_behind_nat_requests_no_public_address() -> None:
    (only,) = interfaces(run_program(publicAddress="nat"))
    assert only["associatePublicIpAddress"] == "false"


def test_private_nodes_use_the_given_subnet_without_public_address() -> None:
    recorder = run_program(publicAddress="private", subnetId="subnet-own")
    assert recorder.of("Eip") == []
    assert interfaces(recorder)[0]["associatePublicIpAddress"] == "false"


SSM = {"reach": "ssm", "sshCidr": None}


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"publicAddress": "private-nat"},
        {"publicAddress": "private", "subnetId": "subnet-own"},
        {**P4D, "publicAddress": "elastic"},
    ],
)
def test_ssm_cluster_allows_no_ingress_and_permits_the_ssm_agent(way: dict[str, str]) -> None:
    recorder = run_program(**SSM, **way)
    (among_nodes,) = recorder.one("SecurityGroup")["ingress"]
    assert (among_nodes["self"], among_nodes["protocol"]) == (True, "-1")
    assert {one["protocol"] for one in recorder.one("SecurityGroup")["egress"]} == {"-1"}
    (agent,) = [
        one
        for one in json.loads(recorder.named("RolePolicy", "demo")["policy"])["Statement"]
        if any(action.startswith("ssm") for action in one["Action"])
    ]
    assert agent["Action"] == [
        "ssm:UpdateInstanceInformation",
        *(f"ssmmessages:{one}" for one in ("CreateControlChannel", "CreateDataChannel")),
        *(f"ssmmessages:{one}" for one in ("OpenControlChannel", "OpenDataChannel")),
    ]


def test_private_nat_nodes_have_no_public_address_and_no_ingress() -> None:
    recorder = run_program(**SSM, **P4D, nodes="3", publicAddress="private-nat")
    assert names(recorder, "Eip") == ["demo-nat"]
    assert recorder.of("EipAssociation") == []
    assert recorder.named("RouteTable", "demo")["routes"] == [
        {"cidrBlock": "0.0.0.0/0", "natGatewayId": "natgateway-id"}
    ]
    assert not any(one["mapPublicIpOnLaunch"] for one in recorder.of("Subnet"))
    (endpoint,) = recorder.of("VpcEndpoint")
    assert endpoint["serviceName"] == "com.amazonaws.us-east-1.s3"


def test_single_interface_with_ssm_keeps_its_public_address() -> None:
    (only,) = interfaces(run_program(**SSM))
    assert only["associatePublicIpAddress"] == "true"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (
            {"publicAddress": "private-nat"},
            "cloudgpu:publicAddress is 'private-nat', expected nat, or cloudgpu:reach ssm",
        ),
        ({**SSM, "publicAddress": "nat"}, "cloudgpu:publicAddress is 'nat', expected private-nat"),
        ({**SSM, "publicAddress": "private-nat", "subnetId": "subnet-1"}, "expected elastic or private, since vpcId"),
        ({"reach": "pigeon"}, "cloudgpu:reach is 'pigeon', expected one of direct, ssm"),
    ],
)
def test_incompatible_network_settings_are_rejected(settings: dict[str, str], says: str) -> None:
    with pytest.raises(pulumi.RunError, match=says):
        run_program(**settings)


def test_capacity_reservation_is_targeted_as_on_demand() -> None:
    recorder = run_program(market="reservation", reservation="cr-0123456789abcdef0")
    template, fleet = recorder.one("LaunchTemplate"), recorder.one("Fleet")
    assert template["capacityReservationSpecification"] == {
        "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}
    }
    assert "instanceMarketOptions" not in template
    assert template["placement"] == {"groupName": "cloudgpu-demo"}
    assert fleet["targetCapacitySpecification"]["defaultTargetCapacityType"] == "on-demand"
    assert fleet["onDemandOptions"]["minTargetCapacity"] == 2


def test_capacity_block_uses_its_own_market_without_placement_group() -> None:
    recorder = run_program(market="capacity-block", reservation="cr-0123456789abcdef0")
    template, fleet = recorder.one("LaunchTemplate"), recorder.one("Fleet")
    assert template["instanceMarketOptions"] == {"marketType": "capacity-block"}
    assert template["capacityReservationSpecification"] == {
        "capacityReservationTarget": {"capacityReservationId": "cr-0123456789abcdef0"}
    }
    assert recorder.of("PlacementGroup") == []
    assert fleet["targetCapacitySpecification"] == {
        "defaultTargetCapacityType": "capacity-block",
        "totalTargetCapacity": 2,
    }
    assert "onDemandOptions" not in fleet
    assert "spotOptions" not in fleet


def test_subnet_of_the_plan_is_used_without_changing_how_addresses_are_assigned() -> None:
    recorder = run_program(chosenSubnetId="subnet-chosen")
    assert recorder.one("Fleet")["launchTemplateConfigs"][0]["overrides"][0]["subnetId"] == "subnet-chosen"
    assert interfaces(recorder)[0]["associatePublicIpAddress"] == "true"
    assert {call.token for call in recorder.calls} & {"aws:ec2/getVpc:getVpc", "aws:ec2/getSubnets:getSubnets"} == set()
    private = run_program(chosenSubnetId="subnet-chosen", publicAddress="private", vpcId="vpc-own")
    assert interfaces(private)[0]["associatePublicIpAddress"] == "false"
    own = run_program(chosenSubnetId="subnet-chosen", subnetId="subnet-own")
    assert own.one("Fleet")["launchTemplateConfigs"][0]["overrides"][0]["subnetId"] == "subnet-own"
