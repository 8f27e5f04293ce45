"""Find storage by its tags against moto: its parts, its users and its deletion."""

import ipaddress
from decimal import Decimal
from typing import Any

import pytest

from cloudgpu.aws.ec2.tagging import to_tag_list
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.s3 import bucket_size, empty_bucket
from cloudgpu.aws.storage import _ipv4, delete_storage, stored
from cloudgpu.errors import CloudError

EFS = "aws:efs/fileSystem:FileSystem"
TARGET = "aws:efs/mountTarget:MountTarget"
VOLUME = "aws:ebs/volume:Volume"
BUCKET = "aws:s3/bucket:Bucket"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
NFS = {"protocol": "tcp", "fromPort": 2049.0, "toPort": 2049.0, "self": True}


def tags(name: str, kind: str, token: str = "tok", keep: str = "true") -> dict[str, str]:
    return {
        "cloudgpu:storage": name,
        "cloudgpu:kind": kind,
        "cloudgpu:owner": "ada",
        "cloudgpu:keep": keep,
        "cloudgpu:token": token,
    }


@pytest.fixture
def make(session, clock):
    def make(type_token: str, own: dict[str, str], **inputs: Any):
        one = handler(type_token)
        return one.create(HandlerContext(session, clock, f"{type_token}{own}"[:40], own), one.check(inputs))

    return make


@pytest.fixture
def subnet(session) -> str:
    return session.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]


@pytest.fixture
def files(make, subnet):
    """A file system with its group and one mount target."""
    own = tags("files", "efs")
    group = make(GROUP, own, name="files", ingress=[NFS])
    system = make(EFS, own, encrypted=True)
    make(TARGET, {}, fileSystemId=system.id, subnetId=subnet, securityGroups=[group.id])
    return system, group


def test_storage_is_grouped_by_name_and_token(make, files, session, clock) -> None:
    own = {"availabilityZone": "us-east-1a", "type": "gp3"}
    make(VOLUME, tags("disk", "ebs", "one", "false"), **own, size=8)
    make(VOLUME, tags("disk", "ebs", "two"), **own, size=16)
    make(VOLUME, {"cloudgpu:cluster": "demo"}, **own, size=32)
    found = stored(session)
    assert [(one.name, one.token, one.kind, one.disposable) for one in found] == [
        ("disk", "one", "ebs", True),
        ("disk", "two", "ebs", False),
        ("files", "tok", "efs", False),
    ]
    assert [part.kind for part in found[2].parts] == ["mount-target", "efs", "security-group"]
    assert [one.data.size_gib for one in found] == [8, 16, 0]
    assert [one.token for one in stored(session, "disk")] == ["one", "two"]
    assert stored(session, "dis") == ()


def test_mount_targets_and_groups_say_where_a_file_system_can_be_mounted(files, session, subnet) -> None:
    place = session.client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"][0]
    (found,) = stored(session, "files")
    assert (found.mount_zones, found.vpc_id) == ((place["AvailabilityZone"],), place["VpcId"])
    network = ipaddress.IPv4Network(place["CidrBlock"])
    assert ipaddress.IPv4Address(found.mount_address(place["AvailabilityZone"])) in network
    assert found.mount_address("us-east-1z") == f"{found.data.id}.efs.us-east-1.amazonaws.com"


def test_invalid_address_of_a_mount_target_is_not_used() -> None:
    assert [_ipv4(text) for text in ("10.0.0.5", "", "10.0.0.500", "$(reboot)", "fe80::1")] == [
        "10.0.0.5",
        "",
        "",
        "",
        "",
    ]


def test_only_tagged_bucket_in_same_region_is_found(make, session) -> None:
    s3 = session.client("s3")
    made = make(BUCKET, tags("logs", "s3"), bucket="cloudgpu-logs-1")
    s3.create_bucket(Bucket="cloudgpu-logs-of-somebody")
    abroad = {"LocationConstraint": "eu-west-1"}
    s3.create_bucket(Bucket="cloudgpu-logs-abroad", CreateBucketConfiguration=abroad)
    s3.put_bucket_tagging(Bucket="cloudgpu-logs-abroad", Tagging={"TagSet": to_tag_list(tags("logs", "s3", "abroad"))})
    s3.put_object(Bucket=made.id, Key="a", Body=b"x" * (1 << 20))
    (one,) = stored(session, "logs")
    assert [part.id for part in one.parts] == [made.id]
    assert (one.data.size_gib, one.users) == (Decimal(1) / 1024, None)


def test_instance_with_storage_security_group_counts_as_user(files, session, subnet) -> None:
    _, group = files
    ec2 = session.client("ec2")
    (one,) = stored(session)
    assert one.users == ()
    cluster = [{"ResourceType": "instance", "Tags": [{"Key": "cloudgpu:cluster", "Value": "demo"}]}]
    made = ec2.run_instances(
        ImageId="ami-12345678",
        MinCount=1,
        MaxCount=1,
        SubnetId=subnet,
        SecurityGroupIds=[group.id],
        TagSpecifications=cluster,
    )
    instance = made["Instances"][0]["InstanceId"]
    (one,) = stored(session)
    assert one.users == (f"{instance} (cluster demo)",)
    ec2.terminate_instances(InstanceIds=[instance])
    (one,) = stored(session)
    assert one.users == ()


def test_bucket_deleted_during_search_is_skipped(make, files, session, monkeypatch) -> None:
    make(BUCKET, tags("logs", "s3"), bucket="cloudgpu-logs-1")

    def deleted(clients, name):
        clients.client("s3").delete_bucket(Bucket=name)
        return bucket_size(clients, name)

    monkeypatch.setattr("cloudgpu.aws.storage.bucket_size", deleted)
    assert [one.name for one in stored(session)] == ["files"]


def test_instance_in_allowed_security_group_counts_as_user(make, session, subnet) -> None:
    ec2 = session.client("ec2")
    nodes = ec2.create_security_group(GroupName="nodes", Description="nodes")["GroupId"]
    own = tags("files", "efs")
    make(GROUP, own, name="files", ingress=[{**NFS, "self": False, "securityGroups": [nodes]}])
    request = {"ImageId": "ami-12345678", "MinCount": 1, "MaxCount": 1, "SubnetId": subnet}
    instance = ec2.run_instances(**request, SecurityGroupIds=[nodes])["Instances"][0]["InstanceId"]
    (one,) = stored(session)
    assert one.users == (instance,)


def test_attached_instance_counts_as_volume_user(make, session) -> None:
    ec2 = session.client("ec2")
    disk = make(VOLUME, tags("disk", "ebs"), availabilityZone="us-east-1a", type="gp3", size=8)
    instance = ec2.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    ec2.attach_volume(VolumeId=disk.id, InstanceId=instance, Device="/dev/sdf")
    (one,) = stored(session)
    assert one.users == (instance,)


def test_delete_storage_removes_every_part_in_order(make, files, session, clock) -> None:
    bucket = make(BUCKET, tags("logs", "s3"), bucket="cloudgpu-logs-1")
    session.client("s3").put_object(Bucket=bucket.id, Key="a", Body=b"x")
    for one in stored(session):
        assert delete_storage(session, one, clock) == []
    assert stored(session) == ()
    groups = session.client("ec2").describe_security_groups()["SecurityGroups"]
    assert "files" not in {group["GroupName"] for group in groups}


def test_failed_part_is_reported_and_other_parts_are_deleted(files, session, clock, monkeypatch) -> None:
    system, _ = files
    refuse = CloudError("AWS says no", code="No")

    def refused(*_: Any) -> None:
        raise refuse

    monkeypatch.setattr(handler(EFS), "delete", refused)
    (one,) = stored(session)
    assert delete_storage(session, one, clock) == [f"efs {system.id} (available) in us-east-1: AWS says no"]
    assert [part.kind for left in stored(session) for part in left.parts] == ["efs"]


def test_size_of_bucket_with_too_many_objects_is_unknown(scripted) -> None:
    stub = scripted.stub("s3")
    rows = [{"Key": str(place), "Size": 1} for place in range(10_000)]
    stub.add_response("list_objects_v2", {"Contents": rows, "IsTruncated": True, "NextContinuationToken": "n"})
    assert bucket_size(scripted, "b-1") is None
    stub.add_response("list_objects_v2", {"Contents": rows, "IsTruncated": False})
    assert bucket_size(scripted, "b-1") == 10_000
    stub.add_response("list_objects_v2", {"IsTruncated": False})
    assert bucket_size(scripted, "b-1") == 0, "AWS sends no `Contents` for an empty bucket"


def test_undeleted_object_is_reported_by_empty_bucket(scripted) -> None:
    stub = scripted.stub("s3")
    stub.add_response("list_object_versions", {"Versions": [{"Key": "a", "VersionId": "v"}]})
    stub.add_response("delete_objects", {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "locked"}]})
    with pytest.raises(CloudError, match="S3 did not delete 1 object in bucket b-1: a: locked"):
        empty_bucket(scripted, "b-1")
