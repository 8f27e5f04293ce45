"""Storage resources are private, encrypted, tagged, and never part of a cluster."""

from typing import Any

import pulumi
import pytest
from program_mock import Recorder
from storage_mock import run_storage

TAGS = {
    "Name": "cloudgpu-data",
    "cloudgpu:storage": "data",
    "cloudgpu:owner": "ada",
    "cloudgpu:team": "lab",
    "cloudgpu:keep": "true",
    "cloudgpu:token": "tok-1",
}
UNTAGGABLE = ("MountTarget", "BucketPublicAccessBlock", "BucketServerSideEncryptionConfiguration")
KINDS: dict[str, dict[str, str]] = {
    "efs": {},
    "lustre": {"zone": "us-east-1b", "sizeGib": "1200", "linked": "s3://sets/imagenet"},
    "ebs": {"zone": "us-east-1b", "snapshotId": "snap-1"},
    "s3": {},
}


@pytest.fixture(scope="module", params=list(KINDS))
def made(request: pytest.FixtureRequest) -> tuple[str, Recorder]:
    return request.param, run_storage(kind=request.param, **KINDS[request.param])


def test_every_resource_has_storage_tags_but_no_cluster_tag(made: tuple[str, Recorder]) -> None:
    kind, recorder = made
    taggable = [one for one in recorder.resources if one.typ.startswith("aws:") and not one.typ.endswith(UNTAGGABLE)]
    assert taggable
    for one in taggable:
        assert one.inputs["tags"] == {**TAGS, "cloudgpu:kind": kind}, one.typ
        assert "cloudgpu:cluster" not in one.inputs["tags"]


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_resource_has_the_users_own_tags(kind: str) -> None:
    recorder = run_storage(kind=kind, **KINDS[kind], tags='{"CostCenter": "42"}')
    taggable = [one for one in recorder.resources if one.typ.startswith("aws:") and not one.typ.endswith(UNTAGGABLE)]
    assert [one.typ for one in taggable if one.inputs["tags"].get("CostCenter") != "42"] == []
    with pytest.raises(pulumi.RunError, match="cloudgpu:tags is"):
        run_storage(kind=kind, **KINDS[kind], tags='{"cloudgpu:keep": "false"}')


def test_security_groups_open_no_port_to_an_address(made: tuple[str, Recorder]) -> None:
    for group in made[1].of("SecurityGroup"):
        for rule in [*group["ingress"], *group["egress"]]:
            assert not {"cidrBlocks", "ipv6CidrBlocks", "prefixListIds"} & rule.keys()
            assert rule.get("self") is True


def test_storage_stack_exports_its_properties(made: tuple[str, Recorder]) -> None:
    kind, recorder = made
    expected: dict[str, dict[str, Any]] = {
        "efs": {
            "id": "filesystem-id",
            "address": "dns",
            "securityGroupId": "securitygroup-id",
            "mountTargetIds": ["mounttarget-id", "mounttarget-id"],
        },
        "lustre": {
            "id": "lustrefilesystem-id",
            "address": "dns",
            "mountName": "mnt",
            "securityGroupId": "securitygroup-id",
            "zone": "us-east-1b",
        },
        "ebs": {"id": "volume-id", "zone": "us-east-1b", "sizeGib": None},
        "s3": {"id": "bucket-id", "url": "s3://bucket-id"},
    }
    assert recorder.exports == {"kind": kind, **expected[kind]}


def test_efs_is_encrypted_with_one_mount_target_per_zone() -> None:
    recorder = run_storage(kind="efs")
    assert recorder.one("FileSystem")["encrypted"] is True
    targets = {(one["subnetId"], tuple(one["securityGroups"])) for one in recorder.of("MountTarget")}
    assert targets == {("subnet-a", ("securitygroup-id",)), ("subnet-b", ("securitygroup-id",))}
    (rule,) = recorder.one("SecurityGroup")["ingress"]
    assert (rule["protocol"], rule["fromPort"], rule["toPort"], rule["self"]) == ("tcp", 2049, 2049, True)


@pytest.mark.parametrize("listed", ['["sg-2", "sg-1"]', "sg-2, sg-1"], ids=["JSON", "of version 0.1.0"])
def test_listed_client_security_groups_can_mount(listed: str) -> None:
    group = run_storage(kind="efs", clientSecurityGroupIds=listed).one("SecurityGroup")
    peers = [(rule.get("self"), rule.get("securityGroups")) for rule in group["ingress"]]
    assert peers == [(True, None), (None, ["sg-1", "sg-2"])]


def test_lustre_link_syncs_both_ways_without_deleting_s3_objects() -> None:
    recorder = run_storage(kind="lustre", **KINDS["lustre"])
    system = recorder.one("LustreFileSystem")
    assert (system["deploymentType"], system["storageCapacity"], system["subnetIds"]) == ("SCRATCH_2", 1200, "subnet-b")
    assert "perUnitStorageThroughput" not in system
    ports = {(rule["fromPort"], rule["toPort"]) for rule in recorder.one("SecurityGroup")["egress"]}
    assert ports == {(988, 988), (1018, 1023)}
    link = recorder.one("DataRepositoryAssociation")
    assert (link["fileSystemPath"], link["dataRepositoryPath"]) == ("/", "s3://sets/imagenet")
    assert "DELETED" in link["s3"]["autoImportPolicy"]["events"]
    assert "DELETED" not in link["s3"]["autoExportPolicy"]["events"]


def test_persistent_lustre_creates_no_backups() -> None:
    wanted = {"zone": "us-east-1a", "sizeGib": "2400", "deployment": "persistent_2"}
    recorder = run_storage(kind="lustre", **wanted)
    system = recorder.one("LustreFileSystem")
    assert (system["deploymentType"], system["perUnitStorageThroughput"]) == ("PERSISTENT_2", 125)
    assert (system["automaticBackupRetentionDays"], system["skipFinalBackup"]) == (0, True)
    assert recorder.of("DataRepositoryAssociation") == []


def test_ebs_volume_from_a_snapshot_is_encrypted() -> None:
    disk = run_storage(kind="ebs", **KINDS["ebs"]).one("Volume")
    assert (disk["encrypted"], disk["type"], disk["snapshotId"]) == (True, "gp3", "snap-1")
    assert disk["availabilityZone"] == "us-east-1b"


def test_bucket_is_private_encrypted_and_unversioned() -> None:
    recorder = run_storage(kind="s3")
    bucket = recorder.one("Bucket")
    assert bucket["bucket"].startswith("cloudgpu-data-")
    assert bucket["forceDestroy"] is False
    block = recorder.one("BucketPublicAccessBlock")
    assert [value for key, value in sorted(block.items()) if key != "bucket"] == [True] * 4
    (rule,) = recorder.one("BucketServerSideEncryptionConfiguration")["rules"]
    assert rule == {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
    assert not [one.typ for one in recorder.resources if "ersioning" in one.typ]


def test_same_named_storages_have_different_buckets() -> None:
    names = {run_storage(kind="s3", token=token).one("Bucket")["bucket"] for token in ("one", "two")}
    assert len(names) == 2


def test_disposable_bucket_is_deleted_with_its_objects() -> None:
    recorder = run_storage(kind="s3", keep="false")
    assert recorder.one("Bucket")["forceDestroy"] is True
    assert recorder.one("Bucket")["tags"]["cloudgpu:keep"] == "false"


@pytest.mark.parametrize(
    ("kind", "holder"), [("efs", "FileSystem"), ("lustre", "LustreFileSystem"), ("ebs", "Volume"), ("s3", "Bucket")]
)
def test_resource_with_retained_data_is_protected(kind: str, holder: str, requests: dict[str, Any]) -> None:
    run_storage(kind=kind, **KINDS[kind])
    assert {name for name, request in requests.items() if request.protect} == {holder}


@pytest.mark.parametrize("changes", [{"keep": "false"}, {"protect": "false"}])
def test_disposable_or_unprotected_storage_is_not_protected(changes: dict[str, str], requests: dict[str, Any]) -> None:
    run_storage(kind="s3", **changes)
    assert {name for name, request in requests.items() if request.protect} == set()


def test_bucket_protection_is_deleted_only_with_its_bucket(requests: dict[str, Any]) -> None:
    run_storage(kind="s3")
    for part in ("BucketPublicAccessBlock", "BucketServerSideEncryptionConfiguration"):
        assert requests[part].deletedWith.endswith("aws:s3/bucket:Bucket::data")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "nfs"}, "cloudgpu:kind"),
        ({"kind": "lustre", "zone": "us-east-1a", "sizeGib": "1300"}, "cloudgpu:sizeGib"),
        ({"kind": "lustre", "zone": "us-east-1a"}, "cloudgpu:sizeGib"),
        ({"kind": "lustre", "zone": "us-east-1f", "sizeGib": "1200"}, "no subnet in us-east-1f"),
        ({"kind": "lustre", "zone": "us-east-1a", "sizeGib": "1200", "deployment": "hdd"}, "cloudgpu:deployment"),
        ({"kind": "ebs", "zone": "us-east-1a"}, "cloudgpu:sizeGib"),
        ({"kind": "ebs", "zone": "Virginia", "sizeGib": "8"}, "cloudgpu:zone"),
        ({"kind": "ebs", "zone": "us-east-1a", "sizeGib": "8 GiB"}, "cloudgpu:sizeGib"),
        ({"kind": "efs", "linked": "s3://sets"}, "cloudgpu:linked"),
        ({"kind": "efs", "keep": "yes"}, "cloudgpu:keep"),
        ({"kind": "efs", "storage": "Data"}, "cloudgpu:storage"),
        ({"kind": "efs", "subnetIds": '["subnet-a", "subnet-x"]'}, "vpc-default, vpc-other"),
        ({"kind": "efs", "subnetIds": '["subnet-a,subnet-x"]'}, "cloudgpu:subnetIds"),
        ({"kind": "efs", "subnetIds": '["subnet-a'}, "cloudgpu:subnetIds"),
        ({"kind": "efs", "clientSecurityGroupIds": "*"}, "cloudgpu:clientSecurityGroupIds"),
        ({"kind": "lustre", "zone": "us-east-1a", "sizeGib": "1200", "linked": "s3://sets/*"}, "cloudgpu:linked"),
        ({"kind": "efs", "vpcId": "vpc-none"}, "no VPC"),
    ],
)
def test_invalid_setting_is_reported_by_name(changes: dict[str, str], named: str) -> None:
    with pytest.raises(pulumi.RunError, match=named):
        run_storage(**changes)


def test_cluster_scoped_storage_is_tagged_with_its_cluster() -> None:
    recorder = run_storage(kind="efs", keep="false", madeFor="demo")
    (system,) = recorder.of("FileSystem")
    assert (system["tags"]["cloudgpu:made-for"], system["tags"]["cloudgpu:keep"]) == ("demo", "false")
    assert "cloudgpu:cluster" not in system["tags"]
