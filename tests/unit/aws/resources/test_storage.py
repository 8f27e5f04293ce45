"""Lifecycles of the storage handlers against moto, and of FSx against scripted responses."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cloudgpu.aws.ec2.tagging import to_tag_list
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.lustre import list_associations
from cloudgpu.aws.resources.registry import handler
from cloudgpu.errors import BadRequestError, CloudError, UnsupportedError

EFS = "aws:efs/fileSystem:FileSystem"
TARGET = "aws:efs/mountTarget:MountTarget"
VOLUME = "aws:ebs/volume:Volume"
BUCKET = "aws:s3/bucket:Bucket"
BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
ENCRYPTION = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"

INPUTS: dict[str, dict[str, Any]] = {
    EFS: {"encrypted": True},
    VOLUME: {"availabilityZone": "us-east-1a", "size": 8.0, "type": "gp3", "encrypted": True},
    BUCKET: {"bucket": "cloudgpu-demo-3f9a"},
}
COMPUTED = {
    EFS: {"arn", "dnsName", "creationToken", "ownerId", "performanceMode", "sizeInBytes"},
    VOLUME: {"arn", "createTime", "iops"},
    BUCKET: {"arn", "bucketDomainName", "bucketRegionalDomainName"},
}


@pytest.mark.parametrize("type_token", INPUTS)
def test_full_lifecycle_ends_with_idempotent_delete(type_token: str, context) -> None:
    one, ctx = handler(type_token), context("intent-1")
    inputs = one.check({**INPUTS[type_token], "tags": {"Name": "n"}})
    assert one.find(ctx, inputs) is None

    made = one.create(ctx, inputs)
    assert all(made.outputs[key] not in ("", None) for key in COMPUTED[type_token])
    assert made.outputs["tags"] == {"Name": "n"}
    assert made.outputs["tagsAll"].items() >= {**ctx.tags, "Name": "n", "cloudgpu:intent": "intent-1"}.items()

    assert one.find(ctx, inputs) == made
    assert one.find(context("intent-2"), inputs) is None
    read = one.read(ctx, made.id)
    assert read is not None
    assert read.outputs["tags"] == made.outputs["tagsAll"]

    again = one.check({**inputs, "tags": {"Other": "o"}})
    assert one.diff(inputs, again).replace == ()
    tags = one.update(context("intent-2"), made.id, inputs, again).outputs["tagsAll"]
    assert (tags["Other"], tags["cloudgpu:token"], tags["cloudgpu:intent"]) == ("o", "tok", "intent-1")
    assert "Name" not in tags

    one.delete(ctx, made.id, made.outputs)
    assert one.read(ctx, made.id) is None
    one.delete(ctx, made.id, made.outputs)


def test_file_system_is_encrypted_and_uses_intent_as_creation_token(context) -> None:
    one = handler(EFS)
    made = one.create(context("intent-1"), one.check(INPUTS[EFS]))
    assert made.outputs["encrypted"] is True
    assert made.outputs["creationToken"] == "intent-1"
    with pytest.raises(BadRequestError) as caught:
        one.create(context("intent-1"), one.check(INPUTS[EFS]))
    assert caught.value.code == "FileSystemAlreadyExists"


@pytest.fixture
def subnet(session) -> str:
    zone = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    return session.client("ec2").describe_subnets(Filters=zone)["Subnets"][0]["SubnetId"]


def test_mount_target_lifecycle_blocks_file_system_deletion(context, session, subnet) -> None:
    ctx = context("intent-1")
    system = handler(EFS).create(ctx, handler(EFS).check(INPUTS[EFS]))
    one = handler(TARGET)
    group = session.client("ec2").create_security_group(GroupName="nfs", Description="nfs")["GroupId"]
    inputs = one.check({"fileSystemId": system.id, "subnetId": subnet, "securityGroups": [group]})
    assert one.find(ctx, inputs) is None
    made = one.create(ctx, inputs)
    assert made.outputs["securityGroups"] == [group]
    assert made.outputs["mountTargetDnsName"] == f"us-east-1a.{system.outputs['dnsName']}"
    assert one.find(ctx, inputs) == made == one.read(ctx, made.id)
    assert one.find(ctx, {**inputs, "subnetId": "subnet-other"}) is None

    with pytest.raises(CloudError) as caught:
        handler(EFS).delete(ctx, system.id, system.outputs)
    assert caught.value.code == "FileSystemInUse"
    one.delete(ctx, made.id, made.outputs)
    assert one.read(ctx, made.id) is None
    handler(EFS).delete(ctx, system.id, system.outputs)
    assert one.find(ctx, inputs) is None


@pytest.mark.parametrize("type_token", [TARGET, BLOCK, ENCRYPTION])
def test_untaggable_resources_reject_tags(type_token: str) -> None:
    with pytest.raises(UnsupportedError, match="tags"):
        handler(type_token).check({"tags": {"a": "b"}})


def test_volume_is_created_from_snapshot_and_grows_in_place(context, session) -> None:
    ec2 = session.client("ec2")
    base = ec2.create_volume(AvailabilityZone="us-east-1a", Size=4)["VolumeId"]
    snapshot = ec2.create_snapshot(VolumeId=base)["SnapshotId"]
    one = handler(VOLUME)
    inputs = one.check({**INPUTS[VOLUME], "snapshotId": snapshot})
    made = one.create(context("intent-1"), inputs)
    assert (made.outputs["snapshotId"], made.outputs["size"], made.outputs["encrypted"]) == (snapshot, 8, True)
    grown = one.check({**inputs, "size": 16.0})
    assert one.diff(inputs, grown).replace == ()
    assert one.update(context("intent-1"), made.id, inputs, grown).outputs["size"] == 16
    assert one.diff(inputs, {**inputs, "encrypted": False}).replace == ("encrypted",)


def test_existing_bucket_is_never_adopted(context, session) -> None:
    session.client("s3").create_bucket(Bucket="cloudgpu-demo-3f9a")
    one = handler(BUCKET)
    inputs = one.check(INPUTS[BUCKET])
    assert one.find(context("intent-1"), inputs) is None
    with pytest.raises(BadRequestError) as caught:
        one.create(context("intent-1"), inputs)
    assert caught.value.code == "BucketAlreadyExists"


def test_bucket_creation_passes_region_and_tags(scripted, clock) -> None:
    scripted.region = "eu-west-1"
    stub = scripted.stub("s3")
    tags = {"cloudgpu:intent": "t"}
    name = {"Bucket": "b-1"}
    configuration = {"LocationConstraint": "eu-west-1", "Tags": to_tag_list(tags)}
    stub.add_client_error("get_bucket_tagging", "NoSuchBucket", expected_params=name)
    stub.add_response("create_bucket", {}, {**name, "CreateBucketConfiguration": configuration})
    stub.add_response("get_bucket_tagging", {"TagSet": to_tag_list(tags)}, name)
    made = handler(BUCKET).create(HandlerContext(scripted, clock, "t", {}), {"bucket": "b-1", "forceDestroy": False})
    assert made.outputs["tagsAll"] == tags
    scripted.done()


def test_nonempty_bucket_is_deleted_only_with_force_destroy(context, session) -> None:
    one, s3 = handler(BUCKET), session.client("s3")
    made = one.create(context("intent-1"), one.check(INPUTS[BUCKET]))
    s3.put_bucket_versioning(Bucket=made.id, VersioningConfiguration={"Status": "Enabled"})
    for body in (b"one", b"two"):
        s3.put_object(Bucket=made.id, Key="a", Body=body)
    s3.delete_object(Bucket=made.id, Key="a")
    s3.create_multipart_upload(Bucket=made.id, Key="half")
    with pytest.raises(BadRequestError) as caught:
        one.delete(context("intent-1"), made.id, made.outputs)
    assert caught.value.code == "BucketNotEmpty"
    one.delete(context("intent-1"), made.id, {**made.outputs, "forceDestroy": True})
    assert one.read(context("intent-1"), made.id) is None


def test_bucket_gets_public_access_block_and_encryption(context, session) -> None:
    bucket = handler(BUCKET).create(context("intent-1"), handler(BUCKET).check(INPUTS[BUCKET]))
    block, encryption = handler(BLOCK), handler(ENCRYPTION)
    names = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    blocked = block.check({"bucket": bucket.id, **dict.fromkeys(names, True)})
    by_default = {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
    encrypted = encryption.check({"bucket": bucket.id, "rules": [by_default]})
    for one, inputs in ((block, blocked), (encryption, encrypted)):
        ctx = context("intent-1")
        assert one.find(ctx, inputs) is None
        made = one.create(ctx, inputs)
        assert one.create(ctx, inputs) == made
        assert one.find(ctx, inputs) is not None
        assert one.find(ctx, {**inputs, **({"blockPublicAcls": False} if one is block else {"rules": []})}) is None
    found = session.client("s3").get_public_access_block(Bucket=bucket.id)["PublicAccessBlockConfiguration"]
    assert set(found.values()) == {True}
    block.delete(context("intent-1"), bucket.id, {})
    assert block.read(context("intent-1"), bucket.id) is None
    block.delete(context("intent-1"), bucket.id, {})


def lustre(lifecycle: str, **more: Any) -> dict[str, Any]:
    return {
        "FileSystemId": "fs-0123456789abcdef0",
        "Lifecycle": lifecycle,
        "StorageCapacity": 1200,
        "StorageType": "SSD",
        "DNSName": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
        "ResourceARN": "arn:aws:fsx:us-east-1:1:file-system/fs-0123456789abcdef0",
        "SubnetIds": ["subnet-0a1b2c3d"],
        "LustreConfiguration": {
            "DeploymentType": "PERSISTENT_2",
            "MountName": "abcdef",
            "PerUnitStorageThroughput": 125,
        },
        "Tags": to_tag_list({"cloudgpu:intent": "t"}),
        **more,
    }


def lustre_inputs() -> dict[str, Any]:
    return {
        "subnetIds": "subnet-0a1b2c3d",
        "securityGroupIds": ["sg-0a1b2c3d4e5"],
        "storageCapacity": 1200.0,
        "deploymentType": "PERSISTENT_2",
        "perUnitStorageThroughput": 125.0,
    }


def test_lustre_creation_waits_until_available(scripted, clock) -> None:
    one, stub = handler(LUSTRE), scripted.stub("fsx")
    wanted = {
        "ClientRequestToken": "t",
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "StorageType": "SSD",
        "SubnetIds": ["subnet-0a1b2c3d"],
        "SecurityGroupIds": ["sg-0a1b2c3d4e5"],
        "Tags": to_tag_list({"cloudgpu:intent": "t"}),
        "LustreConfiguration": {
            "DeploymentType": "PERSISTENT_2",
            "PerUnitStorageThroughput": 125,
            "DataCompressionType": "NONE",
        },
    }
    stub.add_response("create_file_system", {"FileSystem": lustre("CREATING")}, wanted)
    for lifecycle in ("CREATING", "CREATING", "AVAILABLE"):
        stub.add_response("describe_file_systems", {"FileSystems": [lustre(lifecycle)]})
    made = one.create(HandlerContext(scripted, clock, "t", {}), one.check(lustre_inputs()))
    assert made.id == "fs-0123456789abcdef0"
    assert made.outputs["mountName"] == "abcdef"
    assert made.outputs["securityGroupIds"] == ["sg-0a1b2c3d4e5"]
    assert clock.now() > datetime(2026, 11, 21, 4, 0, tzinfo=UTC)
    scripted.done()


def test_failed_lustre_reports_reason_and_stays_findable(scripted, clock) -> None:
    one, stub = handler(LUSTRE), scripted.stub("fsx")
    failed = lustre("FAILED", FailureDetails={"Message": "no capacity left in this zone"})
    stub.add_response("create_file_system", {"FileSystem": lustre("CREATING")})
    stub.add_response("describe_file_systems", {"FileSystems": [failed]})
    ctx, inputs = HandlerContext(scripted, clock, "t", {}), one.check(lustre_inputs())
    with pytest.raises(CloudError, match="no capacity left in this zone"):
        one.create(ctx, inputs)
    for _ in range(2):
        stub.add_response("describe_file_systems", {"FileSystems": [failed]})
    found = one.find(ctx, inputs)
    assert found is not None
    assert found.id == "fs-0123456789abcdef0"
    scripted.done()


def test_lustre_being_deleted_is_not_adopted(scripted, clock) -> None:
    one, stub = handler(LUSTRE), scripted.stub("fsx")
    stub.add_response("describe_file_systems", {"FileSystems": [lustre("DELETING")]})
    assert one.find(HandlerContext(scripted, clock, "t", {}), one.check(lustre_inputs())) is None
    scripted.done()


DELETING = {
    VOLUME: ("ec2", "describe_volumes", {"Volumes": [{"VolumeId": "vol-1", "State": "deleting"}]}),
    TARGET: (
        "efs",
        "describe_mount_targets",
        {
            "MountTargets": [
                {
                    "MountTargetId": "fsmt-0123456789abcdef0",
                    "FileSystemId": "fs-0123456789abcdef0",
                    "SubnetId": "subnet-0a1b2c3d4e5f60718",
                    "LifeCycleState": "deleting",
                }
            ]
        },
    ),
}


@pytest.mark.parametrize("kind", DELETING)
def test_storage_being_deleted_is_not_adopted(scripted, clock, kind) -> None:
    service, operation, response = DELETING[kind]
    scripted.stub(service).add_response(operation, response)
    inputs = {"fileSystemId": "fs-0123456789abcdef0", "subnetId": "subnet-0a1b2c3d4e5f60718"}
    one = handler(kind)
    found = one.find(HandlerContext(scripted, clock, "t", {}), one.check(INPUTS.get(kind, inputs)))
    assert found is None
    scripted.done()


def test_endless_list_of_associations_is_an_error(scripted) -> None:
    stub = scripted.stub("fsx")
    for _ in range(2):
        stub.add_response("describe_data_repository_associations", {"Associations": [], "NextToken": "again"})
    with pytest.raises(CloudError, match="endless list of data repository associations"):
        list(list_associations(scripted.client("fsx")))


def test_lustre_is_deleted_without_final_backup(scripted, clock) -> None:
    one, stub = handler(LUSTRE), scripted.stub("fsx")
    wanted = {"FileSystemId": "fs-0123456789abcdef0", "LustreConfiguration": {"SkipFinalBackup": True}}
    stub.add_response("delete_file_system", {}, wanted)
    stub.add_response("describe_file_systems", {"FileSystems": [lustre("DELETING")]})
    stub.add_client_error("describe_file_systems", "FileSystemNotFound")
    ctx = HandlerContext(scripted, clock, "t", {})
    one.delete(ctx, "fs-0123456789abcdef0", {"deploymentType": "PERSISTENT_2", "skipFinalBackup": True})
    stub.add_response("delete_file_system", {}, {"FileSystemId": "fs-0123456789abcdef0"})
    stub.add_client_error("describe_file_systems", "FileSystemNotFound")
    one.delete(ctx, "fs-0123456789abcdef0", {"deploymentType": "SCRATCH_2"})
    scripted.done()


def test_lustre_grows_in_place_and_shrinking_replaces() -> None:
    one = handler(LUSTRE)
    old = one.check(lustre_inputs())
    assert one.diff(old, {**old, "storageCapacity": 2400.0}).replace == ()
    assert one.diff({**old, "storageCapacity": 2400.0}, old).replace == ("storageCapacity",)


def test_s3_association_sets_policies_and_is_found_by_tag(scripted, clock) -> None:
    one, stub = handler(LINK), scripted.stub("fsx")
    policy = {"autoImportPolicy": {"events": ["NEW"]}, "autoExportPolicy": {"events": ["NEW", "CHANGED"]}}
    link = {"fileSystemId": "fs-0123456789abcdef0", "fileSystemPath": "/data", "dataRepositoryPath": "s3://data/set"}
    inputs = one.check({**link, "batchImportMetaDataOnCreate": True, "s3": policy})
    s3 = {"AutoImportPolicy": {"Events": ["NEW"]}, "AutoExportPolicy": {"Events": ["NEW", "CHANGED"]}}
    shown = {
        "AssociationId": "dra-0123456789abcdef0",
        "ResourceARN": "arn:aws:fsx:us-east-1:1:association/fs-0123456789abcdef0/dra-0123456789abcdef0",
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemPath": "/data",
        "DataRepositoryPath": "s3://data/set",
        "BatchImportMetaDataOnCreate": True,
        "Lifecycle": "AVAILABLE",
        "S3": s3,
        "Tags": to_tag_list({"cloudgpu:intent": "t"}),
    }
    wanted = {
        "ClientRequestToken": "t",
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemPath": "/data",
        "DataRepositoryPath": "s3://data/set",
        "BatchImportMetaDataOnCreate": True,
        "S3": s3,
        "Tags": to_tag_list({"cloudgpu:intent": "t"}),
    }
    answer = {"Association": {**shown, "Lifecycle": "CREATING"}}
    stub.add_response("create_data_repository_association", answer, wanted)
    for _ in range(4):
        stub.add_response("describe_data_repository_associations", {"Associations": [shown]})
    ctx = HandlerContext(scripted, clock, "t", {})
    made = one.create(ctx, inputs)
    assert made.outputs["s3"] == policy
    assert one.find(ctx, inputs) == made
    # The association is on the second page, behind another one, which is being deleted.
    gone = {**shown, "AssociationId": "dra-0123456789abcdef1", "Lifecycle": "DELETING"}
    filters = [{"Name": "file-system-id", "Values": ["fs-0123456789abcdef0"]}]
    pages = (
        ({"Associations": [gone], "NextToken": "next"}, {"Filters": filters}),
        (
            {"Associations": [shown]},
            {"Filters": filters, "NextToken": "next"},
        ),
    )
    for page, request in pages:
        stub.add_response("describe_data_repository_associations", page, request)
    for _ in range(2):
        stub.add_response("describe_data_repository_associations", {"Associations": [shown]})
    assert one.find(ctx, inputs) == made
    scripted.done()
