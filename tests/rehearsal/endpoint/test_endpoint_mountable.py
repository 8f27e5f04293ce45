"""An instance's current security groups, zone, volumes and role decide which storage it can mount."""

import json

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

NFS = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}


@pytest.fixture
def node(rig):
    """Return the ID of an instance, a security group of the instance, and another group."""
    own, other = (
        rig.ec2.create_security_group(GroupName=name, Description="x")["GroupId"] for name in ("own", "other")
    )
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge"}
    made = rig.ec2.run_instances(SecurityGroupIds=[own], SubnetId=rig.subnet(), **run)["Instances"][0]
    rig.until(lambda: rig.states(made["InstanceId"]) == {"running"})
    return made["InstanceId"], own, other


def may(rig, instance):
    """Return the storage that the node was last allowed to mount."""
    if instance in rig.host.mountable:
        return rig.host.mountable[instance]
    return dict(next(spec for spec in rig.host.started if spec.instance_id == instance).mountable)


def let_in(rig, server, members):
    peers = [{"GroupId": members}]
    rig.ec2.authorize_security_group_ingress(GroupId=server, IpPermissions=[{**NFS, "UserIdGroupPairs": peers}])


def test_efs_is_mountable_only_if_its_group_allows_the_node(rig, node):
    instance, own, other = node
    efs, server = rig.aws("efs"), rig.ec2.create_security_group(GroupName="server", Description="x")["GroupId"]
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    efs.create_mount_target(FileSystemId=made, SubnetId=rig.subnet(), SecurityGroups=[server])
    source = f"{made}.efs.us-east-1.amazonaws.com"
    let_in(rig, server, other)
    assert source not in may(rig, instance)
    let_in(rig, server, own)
    assert may(rig, instance)[source] == made


def test_efs_without_mount_target_in_the_zone_is_not_mountable(rig, node):
    instance, own, _ = node
    efs = rig.aws("efs")
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    zones = rig.ec2.describe_subnets()["Subnets"]
    here = rig.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["Placement"]
    elsewhere = next(one["SubnetId"] for one in zones if one["AvailabilityZone"] != here["AvailabilityZone"])
    efs.create_mount_target(FileSystemId=made, SubnetId=elsewhere, SecurityGroups=[own])
    let_in(rig, own, own)
    assert f"{made}.efs.us-east-1.amazonaws.com" not in may(rig, instance)


def test_volume_is_mountable_only_while_attached_in_its_zone(rig, node):
    instance, _, _ = node
    ec2 = rig.ec2
    zone = ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["Placement"]
    here, away = (
        ec2.create_volume(AvailabilityZone=name, Size=8, VolumeType="gp3")["VolumeId"]
        for name in (zone["AvailabilityZone"], "us-east-1b")
    )
    with pytest.raises(ClientError, match="ZoneMismatch"):
        ec2.attach_volume(VolumeId=away, InstanceId=instance, Device="/dev/sdf")
    ec2.attach_volume(VolumeId=here, InstanceId=instance, Device="/dev/sdf")
    assert here in may(rig, instance).values()
    with pytest.raises(ClientError, match="VolumeInUse"):
        ec2.attach_volume(VolumeId=here, InstanceId=instance, Device="/dev/sdg")
    ec2.detach_volume(VolumeId=here, InstanceId=instance, Device="/dev/sdf")
    assert here not in may(rig, instance).values()


def test_private_node_reaches_buckets_only_through_an_endpoint_of_its_route_table(rig):
    ec2, iam = rig.ec2, rig.aws("iam")
    rig.aws("s3").create_bucket(Bucket="data")
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    iam.create_role(RoleName="reader", AssumeRolePolicyDocument=document)
    iam.create_instance_profile(InstanceProfileName="reader")
    iam.add_role_to_instance_profile(InstanceProfileName="reader", RoleName="reader")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24", AvailabilityZone="us-east-1c")["Subnet"]["SubnetId"]
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge"}
    profile = {"Name": "reader"}
    made = ec2.run_instances(SubnetId=subnet, IamInstanceProfile=profile, **run)["Instances"][0]["InstanceId"]
    rig.until(lambda: rig.states(made) == {"running"})
    other = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    filters = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "association.main", "Values": ["true"]}]
    (main,) = ec2.describe_route_tables(Filters=filters)["RouteTables"]
    service = {"VpcId": vpc, "ServiceName": "com.amazonaws.us-east-1.s3", "VpcEndpointType": "Gateway"}
    ec2.create_vpc_endpoint(RouteTableIds=[other], **service)
    assert "data" not in may(rig, made)
    point = ec2.create_vpc_endpoint(RouteTableIds=[main["RouteTableId"]], **service)["VpcEndpoint"]["VpcEndpointId"]
    assert may(rig, made)["data"] == "data"
    ec2.delete_vpc_endpoints(VpcEndpointIds=[point])
    assert "data" not in may(rig, made)
