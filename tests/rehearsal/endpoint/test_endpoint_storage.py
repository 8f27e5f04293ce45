"""File systems, volumes and buckets of the rehearsal cloud: rejected calls, state changes and persistence."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def refused(call: Any, **request: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**request)
    return str(caught.value.response["Error"]["Code"])


def lustre(rig: Any, **more: Any) -> dict[str, Any]:
    return {
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": "2.15",
        "StorageCapacity": 1200,
        "SubnetIds": [rig.subnet()],
        "LustreConfiguration": {"DeploymentType": "SCRATCH_2"},
        **more,
    }


def test_invalid_lustre_requests_are_rejected_like_fsx(module_rig: Any) -> None:
    rig, fsx = module_rig, module_rig.aws("fsx")
    scratch = {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": 125}
    for wrong in (
        {"StorageCapacity": 1300},
        {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}},
        {"LustreConfiguration": scratch},
        {"FileSystemType": "WINDOWS"},
    ):
        assert refused(fsx.create_file_system, **lustre(rig, **wrong)) == "BadRequest", wrong
    assert refused(fsx.create_file_system, **lustre(rig, SubnetIds=["subnet-00000000"])) == "InvalidNetworkSettings"
    no_group = lustre(rig, SecurityGroupIds=["sg-00000000000"])
    assert refused(fsx.create_file_system, **no_group) == "InvalidNetworkSettings"
    assert refused(fsx.describe_file_systems, FileSystemIds=["fs-00000000000000000"]) == "FileSystemNotFound"


def test_lustre_is_created_linked_and_deleted_asynchronously(rig: Any) -> None:
    fsx, ec2 = rig.aws("fsx"), rig.ec2
    group = ec2.create_security_group(GroupName="mount", Description="mount")["GroupId"]
    request = lustre(rig, SecurityGroupIds=[group], ClientRequestToken="once", Tags=[{"Key": "a", "Value": "b"}])
    made = fsx.create_file_system(**request)["FileSystem"]
    assert made["Lifecycle"] == "CREATING"
    assert fsx.create_file_system(**request)["FileSystem"]["FileSystemId"] == made["FileSystemId"]
    assert refused(fsx.create_file_system, **{**request, "StorageCapacity": 2400}) == "IncompatibleParameterError"
    assert refused(ec2.delete_security_group, GroupId=group) == "DependencyViolation"
    link = {
        "FileSystemId": made["FileSystemId"],
        "FileSystemPath": "/",
        "DataRepositoryPath": "s3://no-such-bucket-here/x",
    }
    assert refused(fsx.create_data_repository_association, **link) == "BadRequest"

    def lifecycle() -> str:
        return str(fsx.describe_file_systems(FileSystemIds=[made["FileSystemId"]])["FileSystems"][0]["Lifecycle"])

    rig.until(lambda: lifecycle() == "AVAILABLE")
    shown = fsx.describe_file_systems()["FileSystems"][0]
    assert shown["LustreConfiguration"]["MountName"]
    assert shown["Tags"] == [{"Key": "a", "Value": "b"}]

    broken = fsx.create_data_repository_association(**link)["Association"]["AssociationId"]
    assert refused(fsx.create_data_repository_association, **link) == "BadRequest"

    def association() -> dict[str, Any]:
        found = fsx.describe_data_repository_associations(AssociationIds=[broken])["Associations"]
        return dict(found[0])

    rig.until(lambda: association()["Lifecycle"] == "FAILED")
    assert "no-such-bucket-here" in association()["FailureDetails"]["Message"]
    fsx.delete_file_system(FileSystemId=made["FileSystemId"])
    assert lifecycle() == "DELETING"
    rig.until(lambda: fsx.describe_file_systems()["FileSystems"] == [])
    assert fsx.describe_data_repository_associations()["Associations"] == []
    ec2.delete_security_group(GroupId=group)
    assert not any(client.list_resources(rig.cloud).values())


def test_invalid_volume_requests_are_rejected_like_ec2(module_rig: Any) -> None:
    ec2 = module_rig.ec2
    assert refused(ec2.create_volume, AvailabilityZone="us-east-1z", Size=8) == "InvalidZone.NotFound"
    here = {"AvailabilityZone": "us-east-1a"}
    assert refused(ec2.create_volume, **here, SnapshotId="snap-00000000") == "InvalidSnapshot.NotFound"
    assert refused(ec2.create_volume, **here, Size=8, VolumeType="gp3", Throughput=5000) == "InvalidParameterValue"
    volume = ec2.create_volume(**here, Size=8)["VolumeId"]
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    assert refused(ec2.create_volume, **here, Size=4, SnapshotId=snapshot) == "InvalidParameterValue"
    request = {**here, "Size": 8, "ClientToken": "once"}
    assert ec2.create_volume(**request)["VolumeId"] == ec2.create_volume(**request)["VolumeId"]


def test_bucket_is_tagged_at_creation(module_rig: Any) -> None:
    s3 = module_rig.aws("s3", "eu-west-1", s3={"addressing_style": "path"})
    tags = [{"Key": "cloudgpu:storage", "Value": "a + b"}]
    s3.create_bucket(
        Bucket="tagged-at-once", CreateBucketConfiguration={"LocationConstraint": "eu-west-1", "Tags": tags}
    )
    assert s3.get_bucket_tagging(Bucket="tagged-at-once")["TagSet"] == tags


def test_file_systems_survive_a_server_restart(tmp_path: Path, make_rig: Any) -> None:
    with make_rig(tmp_path) as rig:
        efs = rig.aws("efs")
        system = efs.create_file_system(CreationToken="once", Encrypted=True)["FileSystemId"]
        assert refused(efs.create_file_system, CreationToken="once") == "FileSystemAlreadyExists"
        target = efs.create_mount_target(FileSystemId=system, SubnetId=rig.subnet())["MountTargetId"]
        assert refused(efs.delete_file_system, FileSystemId=system) == "FileSystemInUse"
        fsx = rig.aws("fsx").create_file_system(**lustre(rig))["FileSystem"]["FileSystemId"]
    # A mount target knows its subnet, and a subnet all of EC2: two copies of that would drift apart.
    (snapshot,) = (tmp_path / "rehearsal").rglob("efs@*.pickle")
    assert snapshot.stat().st_size < 8_000
    with make_rig(tmp_path) as rig:
        efs = rig.aws("efs")
        assert {row["id"] for row in client.list_resources(rig.cloud)["file_systems"]} == {system, fsx}
        assert len(client.list_resources(rig.cloud)["interfaces"]) == 2
        efs.delete_mount_target(MountTargetId=target)
        efs.delete_file_system(FileSystemId=system)
        assert efs.describe_file_systems()["FileSystems"] == []


def test_kms_key_of_encrypted_volume_survives_a_server_restart(tmp_path: Path, make_rig: Any) -> None:
    with make_rig(tmp_path) as rig:
        volume = rig.ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, Encrypted=True)
        assert volume["Encrypted"] is True
    with make_rig(tmp_path) as rig:
        (found,) = rig.ec2.describe_volumes()["Volumes"]
        assert found["KmsKeyId"] == volume["KmsKeyId"]
        key = rig.aws("kms").describe_key(KeyId=volume["KmsKeyId"].rpartition("/")[2])
        assert key["KeyMetadata"]["Enabled"] is True
