"""Calls that Pulumi's AWS plugin makes for our resource types: create, read, update and delete."""

import json

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    }
)
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
)


def tagged(kind: str) -> list[dict]:
    return [{"ResourceType": kind, "Tags": [{"Key": "cloudgpu:cluster", "Value": "c"}]}]


def named(name: str, *values: str) -> list[dict]:
    return [{"Name": name, "Values": list(values)}]


def test_network_reads_back_as_created(rig):
    ec2 = rig.ec2
    vpc = ec2.create_vpc(CidrBlock="10.84.0.0/16", TagSpecifications=tagged("vpc"))["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": True})
    attributes = ("enableDnsHostnames", "enableDnsSupport", "enableNetworkAddressUsageMetrics")
    answers = [ec2.describe_vpc_attribute(VpcId=vpc, Attribute=name) for name in attributes]
    found = [answer[name[0].upper() + name[1:]]["Value"] for answer, name in zip(answers, attributes, strict=True)]
    assert found == [True, True, False]
    seen = ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"][0]
    assert (seen["State"], seen["CidrBlock"], seen["InstanceTenancy"]) == ("available", "10.84.0.0/16", "default")
    assert seen["Tags"] == tagged("vpc")[0]["Tags"]
    mine = {"Name": "vpc-id", "Values": [vpc]}
    assert len(ec2.describe_network_acls(Filters=[mine, *named("default", "true")])["NetworkAcls"]) == 1
    assert len(ec2.describe_route_tables(Filters=[mine, *named("association.main", "true")])["RouteTables"]) == 1
    assert len(ec2.describe_security_groups(Filters=[mine, *named("group-name", "default")])["SecurityGroups"]) == 1

    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.84.0.0/17", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
    seen = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]
    assert (seen["MapPublicIpOnLaunch"], seen["AvailableIpAddressCount"]) == (True, 32763)

    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    seen = ec2.describe_internet_gateways(InternetGatewayIds=[gateway])["InternetGateways"][0]
    assert seen["Attachments"] == [{"State": "available", "VpcId": vpc}]

    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    ec2.replace_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    link = ec2.associate_route_table(RouteTableId=table, SubnetId=subnet)["AssociationId"]
    filters = named("association.route-table-association-id", link)
    seen = ec2.describe_route_tables(Filters=filters)["RouteTables"][0]
    assert [row["GatewayId"] for row in seen["Routes"]] == ["local", gateway]
    assert seen["Associations"][0]["AssociationState"]["State"] == "associated"

    ec2.disassociate_route_table(AssociationId=link)
    assert ec2.describe_route_tables(Filters=filters)["RouteTables"] == []
    ec2.delete_route_table(RouteTableId=table)
    ec2.delete_subnet(SubnetId=subnet)
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    ec2.delete_internet_gateway(InternetGatewayId=gateway)
    ec2.delete_vpc(VpcId=vpc)
    left = client.list_resources(rig.cloud)
    assert [left["vpcs"], left["subnets"]] == [[], []]


def test_revoking_egress_for_ipv6_removes_the_rule_or_nothing(rig):
    ec2 = rig.ec2
    group = ec2.create_security_group(GroupName="six", Description="d")["GroupId"]
    everything = [{"CidrIp": "0.0.0.0/0"}]
    over_ipv6 = {"IpProtocol": "-1", "Ipv6Ranges": [{"CidrIpv6": "::/0", "Description": "all of IPv6"}]}
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[over_ipv6])

    def egress():
        (found,) = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"]
        return sorted(
            [item["CidrIp"] for row in found["IpPermissionsEgress"] for item in row["IpRanges"]]
            + [item["CidrIpv6"] for row in found["IpPermissionsEgress"] for item in row["Ipv6Ranges"]]
        )

    assert egress() == ["0.0.0.0/0", "::/0"]
    missing = {"IpProtocol": "-1", "IpRanges": everything, "Ipv6Ranges": [{"CidrIpv6": "2001:db8::/32"}]}
    with pytest.raises(ClientError, match=r"^An error occurred \(InvalidPermission\.NotFound\)"):
        ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[missing])
    assert egress() == ["0.0.0.0/0", "::/0"]
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[over_ipv6])
    assert egress() == ["0.0.0.0/0"]


def test_security_group_and_key_pair_read_back_as_created(rig):
    ec2 = rig.ec2
    group = ec2.create_security_group(GroupName="g", Description="d", TagSpecifications=tagged("security-group"))[
        "GroupId"
    ]
    everywhere = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[everywhere])
    assert ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissionsEgress"] == []
    ssh = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": "203.0.113.7/32", "Description": "SSH from the caller"}],
    }
    among = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh, among])
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=[everywhere, among])
    rules = ec2.describe_security_group_rules(Filters=named("group-id", group))["SecurityGroupRules"]
    shown = {(row["IsEgress"], row["IpProtocol"], row.get("CidrIpv4", "")) for row in rules}
    assert shown == {(False, "tcp", "203.0.113.7/32"), (False, "-1", ""), (True, "-1", "0.0.0.0/0"), (True, "-1", "")}
    assert all(row["SecurityGroupRuleId"].startswith("sgr-") for row in rules)
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[ssh])
    assert len(ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]) == 1

    public = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGCHCKJNLxRUh3U3Lw1QvU6cZv0cT3Y7v0H1lq0m1v8Z test"
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=public, TagSpecifications=tagged("key-pair"))
    seen = ec2.describe_key_pairs(KeyNames=["k"], IncludePublicKey=True)["KeyPairs"][0]
    assert (seen["KeyType"], seen["PublicKey"].split()[:2]) == ("ed25519", public.decode().split()[:2])
    tags = ec2.describe_tags(Filters=named("resource-id", group, seen["KeyPairId"]))["Tags"]
    assert {(row["ResourceType"], row["Value"]) for row in tags} == {("security-group", "c"), ("key-pair", "c")}


def test_launch_template_and_fleet_read_back_as_created(rig, template, fleet):
    ec2 = rig.ec2
    found = ec2.describe_launch_templates(LaunchTemplateIds=[template])["LaunchTemplates"][0]
    assert (found["DefaultVersionNumber"], found["LatestVersionNumber"]) == (1, 1)
    version = ec2.describe_launch_template_versions(LaunchTemplateId=template, Versions=["$Latest"])
    data = version["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"]
    assert {row["ResourceType"] for row in data["TagSpecifications"]} == {"instance", "volume", "network-interface"}
    ec2.create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData={"InstanceType": "g5.xlarge"})
    changed = ec2.modify_launch_template(LaunchTemplateId=template, DefaultVersion="2")["LaunchTemplate"]
    assert (changed["DefaultVersionNumber"], changed["LatestVersionNumber"]) == (2, 2)
    ec2.modify_launch_template(LaunchTemplateId=template, DefaultVersion="1")

    request = fleet(1, [rig.subnet()])
    request["LaunchTemplateConfigs"][0]["LaunchTemplateSpecification"]["Version"] = "1"
    made = ec2.create_fleet(**request)
    seen = ec2.describe_fleets(FleetIds=[made["FleetId"]])["Fleets"][0]
    assert seen["TargetCapacitySpecification"]["TotalTargetCapacity"] == 1
    assert seen["OnDemandOptions"]["SingleAvailabilityZone"]
    assert ec2.describe_placement_groups(GroupNames=["gang"])["PlacementGroups"][0]["State"] == "available"
    (instance,) = made["Instances"][0]["InstanceIds"]
    attributes = {
        "instanceInitiatedShutdownBehavior": "terminate",
        "disableApiTermination": False,
        "instanceType": "p3dn.24xlarge",
        "userData": "IyEvYmluL3NoCg==",
    }
    for name, value in attributes.items():
        answer = ec2.describe_instance_attribute(InstanceId=instance, Attribute=name)
        assert answer[name[0].upper() + name[1:]]["Value"] == value
    assert len(ec2.describe_volumes(Filters=named("attachment.instance-id", instance))["Volumes"]) == 1
    status = ec2.describe_instance_status(InstanceIds=[instance], IncludeAllInstances=True)["InstanceStatuses"]
    assert status[0]["InstanceId"] == instance
    ec2.create_tags(Resources=[instance, made["FleetId"]], Tags=[{"Key": "more", "Value": "1"}])
    assert {"Key": "more", "Value": "1"} in ec2.describe_fleets(FleetIds=[made["FleetId"]])["Fleets"][0]["Tags"]
    ec2.delete_tags(Resources=[instance], Tags=[{"Key": "more"}])
    assert "more" not in {tag["Key"] for tag in rig.instances(instance)[0]["Tags"]}


def test_role_and_instance_profile_read_back_as_created(rig):
    iam = rig.aws("iam")
    iam.create_role(RoleName="r", AssumeRolePolicyDocument=TRUST, Description="d", Tags=[{"Key": "a", "Value": "b"}])
    iam.put_role_policy(RoleName="r", PolicyName="p", PolicyDocument=POLICY)
    assert iam.get_role_policy(RoleName="r", PolicyName="p")["PolicyDocument"] == json.loads(POLICY)
    assert iam.list_role_policies(RoleName="r")["PolicyNames"] == ["p"]
    assert iam.list_attached_role_policies(RoleName="r")["AttachedPolicies"] == []
    iam.update_assume_role_policy(RoleName="r", PolicyDocument=TRUST)
    iam.update_role(RoleName="r", Description="e", MaxSessionDuration=7200)
    iam.tag_role(RoleName="r", Tags=[{"Key": "x", "Value": "y"}])
    iam.untag_role(RoleName="r", TagKeys=["a"])
    seen = iam.get_role(RoleName="r")["Role"]
    assert (seen["Description"], seen["MaxSessionDuration"], seen["Tags"]) == ("e", 7200, [{"Key": "x", "Value": "y"}])
    assert seen["AssumeRolePolicyDocument"] == json.loads(TRUST)

    iam.create_instance_profile(InstanceProfileName="i", Tags=[{"Key": "a", "Value": "b"}])
    iam.add_role_to_instance_profile(InstanceProfileName="i", RoleName="r")
    seen = iam.get_instance_profile(InstanceProfileName="i")["InstanceProfile"]
    assert ([role["RoleName"] for role in seen["Roles"]], seen["Tags"]) == (["r"], [{"Key": "a", "Value": "b"}])
    assert len(iam.list_instance_profiles_for_role(RoleName="r")["InstanceProfiles"]) == 1
    for refused in (
        lambda: iam.delete_role(RoleName="r"),
        lambda: iam.delete_instance_profile(InstanceProfileName="i"),
    ):
        with pytest.raises(iam.exceptions.DeleteConflictException):
            refused()
    iam.remove_role_from_instance_profile(InstanceProfileName="i", RoleName="r")
    iam.delete_instance_profile(InstanceProfileName="i")
    with pytest.raises(iam.exceptions.DeleteConflictException):
        iam.delete_role(RoleName="r")
    iam.delete_role_policy(RoleName="r", PolicyName="p")
    iam.delete_role(RoleName="r")
    left = client.list_resources(rig.cloud)
    assert [left["roles"], left["instance_profiles"]] == [[], []]


def test_nat_gateway_and_vpc_endpoint_read_back_as_created(rig):
    ec2 = rig.ec2
    vpc = ec2.create_vpc(CidrBlock="10.84.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.84.0.0/24", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    made = ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip"))
    address = made["AllocationId"]
    seen = ec2.describe_addresses(AllocationIds=[address])["Addresses"][0]
    assert (seen["Domain"], seen["PublicIp"], seen["Tags"]) == (
        "vpc",
        made["PublicIp"],
        tagged("elastic-ip")[0]["Tags"],
    )
    attributes = ec2.describe_addresses_attribute(AllocationIds=[address], Attribute="domain-name")["Addresses"]
    assert attributes[0]["AllocationId"] == address

    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address, TagSpecifications=tagged("natgateway"))
    nat_id = nat["NatGateway"]["NatGatewayId"]
    rig.until(lambda: ec2.describe_nat_gateways(NatGatewayIds=[nat_id])["NatGateways"][0]["State"] == "available")
    seen = ec2.describe_nat_gateways(NatGatewayIds=[nat_id])["NatGateways"][0]
    assert (seen["SubnetId"], seen["NatGatewayAddresses"][0]["AllocationId"]) == (subnet, address)
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat_id)
    routes = ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"][0]["Routes"]
    assert [row.get("NatGatewayId") for row in routes] == [None, nat_id]

    service = "com.amazonaws.us-east-1.s3"
    point = ec2.create_vpc_endpoint(
        VpcId=vpc, ServiceName=service, RouteTableIds=[table], TagSpecifications=tagged("vpc-endpoint")
    )["VpcEndpoint"]["VpcEndpointId"]
    seen = ec2.describe_vpc_endpoints(VpcEndpointIds=[point])["VpcEndpoints"][0]
    assert (seen["State"], seen["VpcEndpointType"], seen["RouteTableIds"]) == ("available", "Gateway", [table])
    lists = ec2.describe_prefix_lists(Filters=named("prefix-list-name", service))["PrefixLists"]
    assert lists[0]["PrefixListId"].startswith("pl-")


def test_schedule_and_its_group_read_back_as_created(rig):
    scheduler, trust = rig.aws("scheduler"), TRUST.replace("ec2.amazonaws.com", "scheduler.amazonaws.com")
    role = rig.aws("iam").create_role(RoleName="expiry", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    arn = scheduler.create_schedule_group(Name="g", Tags=[{"Key": "a", "Value": "b"}])["ScheduleGroupArn"]
    assert scheduler.get_schedule_group(Name="g")["State"] == "ACTIVE"
    assert scheduler.list_tags_for_resource(ResourceArn=arn)["Tags"] == [{"Key": "a", "Value": "b"}]
    target = {
        "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
        "RoleArn": role,
        "Input": '{"InstanceIds": []}',
    }
    wanted = {"ScheduleExpression": "at(2030-01-01T00:00:00)", "FlexibleTimeWindow": {"Mode": "OFF"}}
    scheduler.create_schedule(Name="s", GroupName="g", Target=target, ActionAfterCompletion="DELETE", **wanted)
    seen = scheduler.get_schedule(Name="s", GroupName="g")
    assert {name: seen[name] for name in wanted} == wanted
    assert (seen["Target"]["Input"], seen["ActionAfterCompletion"]) == (target["Input"], "DELETE")
    later = {**wanted, "ScheduleExpression": "at(2031-01-01T00:00:00)"}
    scheduler.update_schedule(Name="s", GroupName="g", Target=target, **later)
    assert scheduler.get_schedule(Name="s", GroupName="g")["ScheduleExpression"] == later["ScheduleExpression"]
    scheduler.delete_schedule(Name="s", GroupName="g")
    with pytest.raises(scheduler.exceptions.ResourceNotFoundException):
        scheduler.get_schedule(Name="s", GroupName="g")
    scheduler.delete_schedule_group(Name="g")
    with pytest.raises(scheduler.exceptions.ResourceNotFoundException):
        scheduler.get_schedule_group(Name="g")
