"""What the storage program makes: closed, encrypted, tagged, and never a cluster's."""

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


def test_everything_carries_the_storages_tags_and_no_clusters(made: tuple[str, Recorder]) -> None:
    kind, recorder = made
    taggable = [one for one in recorder.resources if one.typ.startswith("aws:") and not one.typ.endswith(UNTAGGABLE)]
    assert taggable
    for one in taggable:
        assert one.inputs["tags"] == {**TAGS, "cloudgpu:kind": kind}, one.typ
        assert "cloudgpu:cluster" not in one.inputs["tags"]


def test_no_port_opens_to_an_address(made: tuple[str, Recorder]) -> None:
    for group in made[1].of("SecurityGroup"):
        for rule in [*group["ingress"], *group["egress"]]:
            assert not {"cidrBlocks", "ipv6CidrBlocks", "prefixListIds"} & rule.keys()
            assert rule.get("self") is True


def test_the_stack_says_what_it_is(made: tuple[str, Recorder]) -> None:
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


def test_efs_is_encrypted_and_has_one_address_a_zone() -> None:
    recorder = run_storage(kind="efs")
    assert recorder.one("FileSystem")["encrypted"] is True
    targets = {(one["subnetId"], tuple(one["securityGroups"])) for one in recorder.of("MountTarget")}
    assert targets == {("subnet-a", ("securitygroup-id",)), ("subnet-b", ("securitygroup-id",))}
    (rule,) = recorder.one("SecurityGroup")["ingress"]
    assert (rule["protocol"], rule["fromPort"], rule["toPort"], rule["self"]) == ("tcp", 2049, 2049, True)


def test_named_groups_may_mount_too() -> None:
    group = run_storage(kind="efs", clientSecurityGroupIds="sg-2, sg-1").one("SecurityGroup")
    peers = [(rule.get("self"), rule.get("securityGroups")) for rule in group["ingress"]]
    assert peers == [(True, None), (None, ["sg-1", "sg-2"])]


def test_lustre_is_linked_both_ways_but_deletes_nothing_in_s3() -> None:
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


def test_persistent_lustre_keeps_no_backups_that_nobody_finds_again() -> None:
    wanted = {"zone": "us-east-1a", "sizeGib": "2400", "deployment": "persistent_2"}
    recorder = run_storage(kind="lustre", **wanted)
    system = recorder.one("LustreFileSystem")
    assert (system["deploymentType"], system["perUnitStorageThroughput"]) == ("PERSISTENT_2", 125)
    assert (system["automaticBackupRetentionDays"], system["skipFinalBackup"]) == (0, True)
    assert recorder.of("DataRepositoryAssociation") == []


def test_a_disk_is_encrypted_whatever_its_snapshot_was() -> None:
    disk = run_storage(kind="ebs", **KINDS["ebs"]).one("Volume")
    assert (disk["encrypted"], disk["type"], disk["snapshotId"]) == (True, "gp3", "snap-1")
    assert disk["availabilityZone"] == "us-east-1b"


def test_a_bucket_is_closed_encrypted_and_keeps_no_older_versions() -> None:
    recorder = run_storage(kind="s3")
    bucket = recorder.one("Bucket")
    assert bucket["bucket"].startswith("cloudgpu-data-")
    assert bucket["forceDestroy"] is False
    block = recorder.one("BucketPublicAccessBlock")
    assert [value for key, value in sorted(block.items()) if key != "bucket"] == [True] * 4
    (rule,) = recorder.one("BucketServerSideEncryptionConfiguration")["rules"]
    assert rule == {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}
    assert not [one.typ for one in recorder.resources if "ersioning" in one.typ]


def test_two_of_one_name_have_two_buckets() -> None:
    names = {run_storage(kind="s3", token=token).one("Bucket")["bucket"] for token in ("one", "two")}
    assert len(names) == 2


def test_only_disposable_data_goes_with_its_bucket() -> None:
    recorder = run_storage(kind="s3", keep="false")
    assert recorder.one("Bucket")["forceDestroy"] is True
    assert recorder.one("Bucket")["tags"]["cloudgpu:keep"] == "false"


@pytest.mark.parametrize(
    ("kind", "holder"), [("efs", "FileSystem"), ("lustre", "LustreFileSystem"), ("ebs", "Volume"), ("s3", "Bucket")]
)
def test_what_holds_kept_data_is_protected(kind: str, holder: str, requests: dict[str, Any]) -> None:
    run_storage(kind=kind, **KINDS[kind])
    assert {name for name, request in requests.items() if request.protect} == {holder}


@pytest.mark.parametrize("changes", [{"keep": "false"}, {"protect": "false"}])
def test_disposable_data_is_not(changes: dict[str, str], requests: dict[str, Any]) -> None:
    run_storage(kind="s3", **changes)
    assert {name for name, request in requests.items() if request.protect} == set()


def test_a_bucket_stays_closed_until_it_is_gone_itself(requests: dict[str, Any]) -> None:
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
        ({"kind": "efs", "subnetIds": "subnet-a,subnet-x"}, "vpc-default, vpc-other"),
        ({"kind": "efs", "vpcId": "vpc-none"}, "no VPC"),
    ],
)
def test_a_mistake_is_named_by_its_setting(changes: dict[str, str], named: str) -> None:
    with pytest.raises(pulumi.RunError, match=named):
        run_storage(**changes)


def test_what_ends_with_a_cluster_says_with_which() -> None:
    recorder = run_storage(kind="efs", keep="false", madeFor="demo")
    (system,) = recorder.of("FileSystem")
    assert (system["tags"]["cloudgpu:made-for"], system["tags"]["cloudgpu:keep"]) == ("demo", "false")
    assert "cloudgpu:cluster" not in system["tags"]
