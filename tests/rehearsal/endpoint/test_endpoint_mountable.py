"""What an instance may mount comes from its groups, its zone, its volumes and its role, as they are now."""

import pytest
from botocore.exceptions import ClientError

pytestmark = pytest.mark.rehearsal

NFS = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}


@pytest.fixture
def node(rig):
    """An instance, the group that it carries, and one that it does not."""
    own, other = (
        rig.ec2.create_security_group(GroupName=name, Description="x")["GroupId"] for name in ("own", "other")
    )
    run = {"MinCount": 1, "MaxCount": 1, "ImageId": rig.ami(), "InstanceType": "p3dn.24xlarge"}
    made = rig.ec2.run_instances(SecurityGroupIds=[own], SubnetId=rig.subnet(), **run)["Instances"][0]
    rig.until(lambda: rig.states(made["InstanceId"]) == {"running"})
    return made["InstanceId"], own, other


def may(rig, instance):
    """What the node was told last that it may mount."""
    if instance in rig.host.mountable:
        return rig.host.mountable[instance]
    return dict(next(spec for spec in rig.host.started if spec.instance_id == instance).mountable)


def let_in(rig, server, members):
    peers = [{"GroupId": members}]
    rig.ec2.authorize_security_group_ingress(GroupId=server, IpPermissions=[{**NFS, "UserIdGroupPairs": peers}])


def test_files_are_open_to_members_of_a_group_that_their_server_lets_in(rig, node):
    instance, own, other = node
    efs, server = rig.aws("efs"), rig.ec2.create_security_group(GroupName="server", Description="x")["GroupId"]
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    efs.create_mount_target(FileSystemId=made, SubnetId=rig.subnet(), SecurityGroups=[server])
    source = f"{made}.efs.us-east-1.amazonaws.com"
    let_in(rig, server, other)
    assert source not in may(rig, instance)
    let_in(rig, server, own)
    assert may(rig, instance)[source] == made


def test_files_without_an_address_in_the_zone_are_not_reached(rig, node):
    instance, own, _ = node
    efs = rig.aws("efs")
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    zones = rig.ec2.describe_subnets()["Subnets"]
    here = rig.ec2.describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]["Placement"]
    elsewhere = next(one["SubnetId"] for one in zones if one["AvailabilityZone"] != here["AvailabilityZone"])
    efs.create_mount_target(FileSystemId=made, SubnetId=elsewhere, SecurityGroups=[own])
    let_in(rig, own, own)
    assert f"{made}.efs.us-east-1.amazonaws.com" not in may(rig, instance)


def test_a_disk_is_there_while_it_is_attached_and_to_one_instance_of_its_zone(rig, node):
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
