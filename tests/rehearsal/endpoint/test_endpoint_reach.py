"""Who reaches a node and what it reaches comes from groups, routes and gateways, as they are now."""

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


def test_rules_of_the_group_open_and_close_a_node(rig):
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


def test_without_a_route_to_a_gateway_nothing_gets_through(rig):
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
    assert rig.host.reach == {node: (True, True)}
    ec2.delete_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0")
    assert rig.host.reach == {node: (False, False)}
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.disassociate_route_table(AssociationId=link)
    assert rig.host.reach == {node: (False, False)}
