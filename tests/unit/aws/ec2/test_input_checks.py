"""Check in an AWS account whether datasets and named resources are present, missing or unreadable."""

import pytest

from cloudgpu.aws import s3
from cloudgpu.aws.ec2 import named_resources
from cloudgpu.aws.ec2.named_resources import check_dataset, check_named_resource
from cloudgpu.aws.s3 import ObjectInfo, S3Location, archived_objects
from cloudgpu.aws.session.session import Session
from cloudgpu.plan.named_resources import DatasetSeen


def bucket(session: Session, name: str, **objects: int) -> None:
    client = session.client("s3")
    client.create_bucket(Bucket=name)
    for key, size in objects.items():
        client.put_object(Bucket=name, Key=f"set/{key}", Body=b"x" * size)


def test_dataset_has_size_and_region(session: Session) -> None:
    bucket(session, "data", a=3, b=4)
    assert check_dataset(session, "s3://data/set/") == DatasetSeen("there", size_bytes=7, region="us-east-1")


def test_dataset_size_is_lower_bound_above_listing_limit(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket(session, "data", a=3, b=4, c=5)
    monkeypatch.setattr(named_resources, "_COUNTED", 2)
    assert check_dataset(session, "s3://data/set/") == DatasetSeen(
        "there", size_bytes=7, whole=False, region="us-east-1"
    )
    monkeypatch.setattr(named_resources, "_COUNTED", 3)
    assert check_dataset(session, "s3://data/set/").whole


def put(session: Session, **classes: str) -> None:
    client = session.client("s3")
    client.create_bucket(Bucket="data")
    for key, storage_class in classes.items():
        client.put_object(Bucket="data", Key=f"set/{key}", Body=b"x", StorageClass=storage_class)


def test_archived_objects_are_reported_with_class(session: Session) -> None:
    put(session, a="STANDARD", b="GLACIER", c="DEEP_ARCHIVE", d="GLACIER_IR", e="STANDARD_IA", f="INTELLIGENT_TIERING")
    seen = check_dataset(session, "s3://data/set")
    assert (seen.presence, seen.size_bytes) == ("archived", 6)
    assert seen.why == "2 of 6 objects are archived (DEEP_ARCHIVE, GLACIER), such as s3://data/set/b"


def test_restored_and_instant_objects_are_readable(session: Session) -> None:
    put(session, a="GLACIER", d="GLACIER_IR", e="ONEZONE_IA")
    session.client("s3").restore_object(Bucket="data", Key="set/a", RestoreRequest={"Days": 1})
    assert check_dataset(session, "s3://data/set").presence == "there"


@pytest.mark.parametrize(
    ("storage_class", "head", "tier"),
    [
        ("INTELLIGENT_TIERING", {}, ""),
        ("INTELLIGENT_TIERING", {"ArchiveStatus": "ARCHIVE_ACCESS"}, "ARCHIVE_ACCESS"),
        ("INTELLIGENT_TIERING", {"ArchiveStatus": "DEEP_ARCHIVE_ACCESS"}, "DEEP_ARCHIVE_ACCESS"),
        ("INTELLIGENT_TIERING", None, ""),
        ("GLACIER", {}, "GLACIER"),
        ("GLACIER", None, "GLACIER"),
        ("GLACIER", {"Restore": 'ongoing-request="true"'}, "GLACIER"),
        ("DEEP_ARCHIVE", {"Restore": 'ongoing-request="false", expiry-date="Fri, 23 Dec 2026 00:00:00 GMT"'}, ""),
    ],
)
def test_restore_state_of_archived_object(scripted, storage_class, head, tier) -> None:
    """The state is unknown if HeadObject is denied; then the storage class decides."""
    stub = scripted.stub("s3")
    if head is None:
        stub.add_client_error("head_object", "403", "Forbidden", http_status_code=403)
    else:
        stub.add_response("head_object", head, {"Bucket": "b", "Key": "k"})
    item = ObjectInfo("k", "k", 1, "", storage_class)
    found = archived_objects(scripted.client("s3"), S3Location("b", ""), [item])
    assert found == ({"k": tier} if tier else {})
    scripted.done()


def test_archive_class_counts_although_many_other_objects_are_looked_up(session: Session, monkeypatch) -> None:
    monkeypatch.setattr(s3, "_MOST_HEADS", 2)
    put(session, a="INTELLIGENT_TIERING", b="INTELLIGENT_TIERING", c="GLACIER", d="GLACIER", e="GLACIER")
    seen = check_dataset(session, "s3://data/set")
    assert seen.why == "3 of 5 objects are archived (GLACIER), such as s3://data/set/c"


def test_empty_prefix_and_absent_bucket_are_missing(session: Session) -> None:
    bucket(session, "data", a=3)
    assert check_dataset(session, "s3://data/sett/") == DatasetSeen(
        "missing", "there are no objects under s3://data/sett/", region="us-east-1"
    )
    assert check_dataset(session, "s3://dat/set/") == DatasetSeen("missing", "there is no bucket dat")


def test_named_resources_are_reported_as_present_or_missing(session: Session) -> None:
    ec2 = session.client("ec2")
    ec2.create_key_pair(KeyName="ann")
    session.client("iam").create_role(RoleName="gpu", AssumeRolePolicyDocument="{}")
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
    group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
    there = {"key pair": "ann", "role": "gpu", "VPC": vpc, "subnet": subnet, "security group": group}
    missing = {
        "key pair": "anne",
        "role": "cpu",
        "VPC": "vpc-0123456789abcdef0",
        "subnet": "subnet-0123456789abcdef0",
        "security group": "sg-0123456789abcdef0",
    }
    assert {kind: check_named_resource(session, kind, name) for kind, name in there.items()} == dict.fromkeys(
        there, ("there", "")
    )
    assert {check_named_resource(session, kind, name) for kind, name in missing.items()} == {("missing", "")}


def test_resources_without_read_permission_are_reported_as_unknown(scripted) -> None:
    session = scripted
    session.stub("ec2").add_client_error("describe_key_pairs", "UnauthorizedOperation", "not authorized")
    session.stub("iam").add_client_error("get_role", "AccessDenied", "not authorized")
    session.stub("s3").add_client_error("head_bucket", "403", "Forbidden", http_status_code=403)
    assert check_named_resource(session, "key pair", "ann")[0] == "unknown"
    assert check_named_resource(session, "role", "gpu")[0] == "unknown"
    seen = check_dataset(session, "s3://data/set/")
    assert (seen.presence, seen.size_bytes) == ("unknown", None)
    assert "data" in seen.why
