"""Current security groups, routes and gateways decide whether a node can be reached and can reach out."""

import pytest

pytestmark = pytest.mark.rehearsal

HERE = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "127.0.0.1/32"}]}
ELSEWHERE = {**HERE, "IpRanges": [{"CidrIp": "203.0.113.7/32"}]}
OUT = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


def launched(rig, group: str, subnet: str) -> str:
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge"}
    made = rig.ec2.run_instances(SecurityGroupIds=[group], SubnetId=subnet, **run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(made) == {"running"})
    return made


def at_boot(rig, instance: str) -> tuple[bool, bool]:
    spec = next(spec for spec in rig.host.started if spec.instance_id == instance)
    return spec.ssh_open, spec.egress


def test_security_group_rules_open_and_close_a_node(rig):
    ec2 = rig.ec2
    group = ec2.create_security_group(GroupName="g", Description="x")["GroupId"]
    node = launched(rig, group, rig.subnet())
    assert at_boot(rig, node) == (False, True), "a new group lets nothing in and everything out"
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ELSEWHERE])
    assert rig.host.reach == {}, "somebody else's address opens nothing for this one"
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[HERE])
    assert rig.host.reach == {node: (True, True)}
    second = launched(rig, group, rig.subnet())
    assert at_boot(rig, second) == (True, True)
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[OUT])
    assert rig.host.reach == {node: (True, False), second: (True, False)}
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[HERE])
    assert rig.host.reach[node] == (False, False)
    every = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 1024, "IpRanges": [{"CidrIp": "127.0.0.0/8"}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[every])
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[https])
    assert rig.host.reach[node] == (True, True)


def test_node_without_a_gateway_route_is_unreachable(rig):
    ec2 = rig.ec2
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="g", Description="x", VpcId=vpc)["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[HERE])
    node = launched(rig, group, subnet)
    assert at_boot(rig, node) == (False, False)
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    assert rig.host.reach == {}, "the table is not the subnet's yet"
    link = ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)["AssociationId"]
    assert rig.host.reach == {node: (True, False)}, "a gateway translates only public addresses"
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    taken = ec2.associate_address(AllocationId=address, InstanceId=node)["AssociationId"]
    assert rig.host.reach == {node: (True, True)}
    ec2.disassociate_address(AssociationId=taken)
    assert rig.host.reach == {node: (True, False)}
    ec2.associate_address(AllocationId=address, InstanceId=node)
    ec2.delete_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0")
    assert rig.host.reach == {node: (False, False)}
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.disassociate_route_table(AssociationId=link)
    assert rig.host.reach == {node: (False, False)}


def private_vpc(ec2) -> tuple[str, str]:
    """Create a VPC with a subnet that assigns no public addresses; return both."""
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    row = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1c")["Subnet"]
    return vpc, row["SubnetId"]


def test_node_behind_nat_reaches_the_internet_without_a_public_address(rig):
    ec2 = rig.ec2
    vpc, subnet = private_vpc(ec2)
    public = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)
    group = ec2.create_security_group(GroupName="g", Description="x", VpcId=vpc)["GroupId"]
    node = launched(rig, group, subnet)
    assert at_boot(rig, node) == (False, False)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=public, AllocationId=address)["NatGateway"]["NatGatewayId"]
    rig.until(lambda: ec2.describe_nat_gateways(NatGatewayIds=[nat])["NatGateways"][0]["State"] == "available")
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    assert rig.host.reach == {node: (False, True)}


def test_node_with_several_network_cards_reaches_the_internet_once_it_has_an_elastic_ip(rig):
    """EC2 assigns no public address to it, not even in a subnet that requests one for every instance."""
    ec2 = rig.ec2
    group = ec2.create_security_group(GroupName="g", Description="x")["GroupId"]
    cards = [
        {"NetworkCardIndex": card, "DeviceIndex": min(card, 1), "SubnetId": rig.subnet(), "Groups": [group]}
        for card in range(4)
    ]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p4d.24xlarge"}
    made = ec2.run_instances(NetworkInterfaces=cards, **run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(made) == {"running"})
    assert at_boot(rig, made) == (False, False)
    (row,) = rig.instances(made)
    primary = next(card for card in row["NetworkInterfaces"] if card["Attachment"]["NetworkCardIndex"] == 0)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    ec2.associate_address(AllocationId=address, NetworkInterfaceId=primary["NetworkInterfaceId"])
    assert rig.host.reach == {made: (False, True)}
