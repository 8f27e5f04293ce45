"""Queries of the AWS backend, answered by moto: each reaches the right region and service."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cloudgpu.aws.ec2 import instances, tag_search
from cloudgpu.aws.ec2.tagging import SearchResult
from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.backends.aws import account
from cloudgpu.backends.aws.account import AwsAccount, CloudTarget
from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.cloud import GLOBAL, TaggedResource
from cloudgpu.errors import AuthError, CloudError, TeardownError
from tests.manual_clock import ManualClock
from tests.unit.aws.conftest import *  # noqa: F403 - a session that moto answers

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ACCOUNT = "123456789012"  # moto's own
PARAMETER = "/cloudgpu/test/image"


@dataclass(frozen=True)
class Settings:
    region: str = "us-east-1"
    aws_profile: str = ""
    ssh_user: str = "ubuntu"
    ssh_cidr: str = ""
    reach: str = "direct"
    bastion: str = ""
    boot_seconds: int = 600
    engine: str = ""


@pytest.fixture
def backend(session, monkeypatch):
    """Return a cloud for moto's account."""
    monkeypatch.setattr(account, "connect", lambda _endpoint, region, *_rest: session.in_region(region))
    clock = ManualClock(NOON)
    return AwsAccount(
        CloudTarget("aws", CloudEndpoint(), ""), lambda _found, _private: {}, Settings(), clock, ApiCallLog(None, clock)
    )


@pytest.fixture
def launch(session):
    """Launch an instance with a cluster's tag and return its id."""

    def run(region="us-east-1", cluster="demo"):
        ec2 = session.in_region(region).client("ec2")
        tags = [{"Key": "cloudgpu:cluster", "Value": cluster}, {"Key": "cloudgpu:token", "Value": "t"}]
        reply = ec2.run_instances(
            ImageId="ami-12c6146b",
            MinCount=1,
            MaxCount=1,
            InstanceType="p3.2xlarge",
            TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
        )
        return reply["Instances"][0]["InstanceId"]

    return run


def test_account_id_is_cached(backend, monkeypatch):
    assert backend.account() == ACCOUNT
    monkeypatch.setattr(backend, "session", None)
    assert backend.account() == ACCOUNT


def test_deletion_falls_back_to_another_region(backend, monkeypatch):
    session_of = backend.session

    def broken(region):
        if region == "us-east-1":
            raise CloudError("STS in us-east-1 does not answer")
        return session_of(region)

    monkeypatch.setattr(backend, "session", broken)
    with pytest.raises(CloudError, match="us-east-1 does not answer"):
        backend.account()
    assert backend.for_deletion().account() == ACCOUNT
    assert "us-west-2" in backend.regions()


def test_rejected_credentials_raise_the_default_region_error(backend, monkeypatch):
    tried = []

    def refused(region):
        tried.append(region)
        raise AuthError(f"{region} refused", request_id="r-1") if region == "us-east-1" else CloudError(region)

    monkeypatch.setattr(backend, "session", refused)
    with pytest.raises(AuthError, match="us-east-1 refused"):
        backend.for_deletion().account()
    assert tried == ["us-east-1", "us-west-2", "eu-west-1"]


def test_instance_unknown_to_aws_is_terminated(backend, launch):
    running = launch()
    states = backend.instance_states("us-east-1", [running, "i-0123456789abcdef0"])
    assert states == {running: "running", "i-0123456789abcdef0": "terminated"}
    assert backend.instance_states("us-east-1", []) == {}
    assert backend.lifetimes("us-east-1", [running])[running].alive
    backend.terminate("us-east-1", [running])
    assert backend.instance_states("us-east-1", [running]) == {running: "terminated"}


def test_every_region_is_searched_and_failed_ones_are_named(backend, monkeypatch):
    def search_region(session, cluster):
        if session.region == "eu-west-1":
            raise CloudError("eu-west-1 does not answer")
        return SearchResult((TaggedResource("instance", f"i-{session.region}", session.region, "", {}),))

    iam = TaggedResource("role", "cloudgpu-demo", GLOBAL, "", {})
    monkeypatch.setattr(tag_search, "search_region", search_region)
    monkeypatch.setattr(tag_search, "search_iam", lambda _session, _cluster: SearchResult((iam,)))
    everywhere = ("us-east-1", "us-west-2", "us-east-1")
    assert {resource.id for resource in backend.search("demo", everywhere)} == {
        "i-us-east-1",
        "i-us-west-2",
        "cloudgpu-demo",
    }
    partial = backend.search_each("demo", ("us-east-1", "eu-west-1"))
    assert {resource.id for resource in partial.found} == {"i-us-east-1"}
    assert {region: err.message for region, err in partial.failures.items()} == {
        "eu-west-1": "eu-west-1 does not answer"
    }
    assert set(backend.search_all_clusters("eu-west-1").failures) == {"eu-west-1"}
    with pytest.raises(CloudError, match="eu-west-1 does not answer"):
        backend.search("demo", ("us-east-1", "eu-west-1"))


def test_failures_in_several_regions_are_combined_into_one_error(backend, monkeypatch):
    def release(session, found, _clock):
        raise TeardownError(f"{session.region} failed", left=[resource.id for resource in found])

    monkeypatch.setattr(tag_search, "release", release)
    found = [TaggedResource("volume", f"vol-{region}", region, "", {}) for region in ("us-east-1", "us-west-2")]
    with pytest.raises(TeardownError, match="us-east-1 failed; us-west-2 failed") as caught:
        backend.release(found)
    assert caught.value.left == ("vol-us-east-1", "vol-us-west-2")


def test_tags_are_written_in_the_region_of_each_resource(backend, launch):
    here, there = launch(), launch("us-west-2")
    found = [
        TaggedResource("instance", here, "us-east-1", "", {}),
        TaggedResource("instance", there, "us-west-2", "", {}),
    ]
    backend.retag(found, {"cloudgpu:expires-at": "2026-11-22T05:00:00Z"})
    for resource in found:
        (instance,) = instances.describe(backend.session(resource.region), [resource.id])
        assert instance.tags["cloudgpu:expires-at"] == "2026-11-22T05:00:00Z"


def test_machine_images_are_looked_up_in_their_region(backend, session):
    session.in_region("us-west-2").client("ssm").put_parameter(Name=PARAMETER, Value="ami-west", Type="String")
    wanted = [(PARAMETER, "us-west-2"), (PARAMETER, "us-east-1")]
    assert backend.image_ids(wanted) == {(PARAMETER, "us-west-2"): "ami-west"}
    assert backend.session("us-west-2").region == "us-west-2"
    assert backend.session_plugin == ()
    assert list(backend.network_lifetimes("us-east-1", "t")) == []


def test_object_urls_are_signed_for_the_bucket_region(backend, session, tmp_path):
    west = session.in_region("us-west-2").client("s3")
    west.create_bucket(Bucket="west-data", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    west.put_object(Bucket="west-data", Key="digits/a.csv", Body=b"1,2\n")
    (listed,) = backend.objects("s3://west-data/digits", expires_s=60)
    assert (listed.relative, listed.size) == ("a.csv", 4)
    assert "us-west-2" in listed.url
    assert backend.bucket_service("s3://west-data").region == "us-west-2"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "b.csv").write_text("3")
    assert backend.put_objects("s3://made-here/x", tmp_path / "data") == 1


def test_catalog_reads_each_region_and_rejects_missing_images(backend, session):
    session.client("ssm").put_parameter(Name=PARAMETER, Value="ami-1", Type="String")
    catalog = backend.catalog
    assert "eu-west-1" in catalog.regions()
    assert catalog.images("us-east-1", [PARAMETER, "/missing"]) == {PARAMETER: "ami-1"}
    assert catalog.images("us-west-2", []) == {}
    with pytest.raises(CloudError, match="us-west-2") as caught:
        catalog.images("us-west-2", [PARAMETER])
    assert "ssm:GetParameter" in caught.value.hint
    assert catalog.types("us-east-1")["p4d.24xlarge"].gpus == 8
    offered = backend.quotes([("p4d.24xlarge", "us-east-1"), ("p99.large", "us-east-1")]).zones
    assert offered["p4d.24xlarge", "us-east-1"]
    assert offered["p99.large", "us-east-1"] == ()


def test_image_is_found_by_name_and_deleted(backend, session):
    tags = [{"Key": "cloudgpu:image", "Value": "base"}, {"Key": "cloudgpu:owner", "Value": "ann"}]
    image_id = session.client("ec2").register_image(Name="cloudgpu-base")["ImageId"]
    session.client("ec2").create_tags(Resources=[image_id], Tags=tags)
    images = backend.images
    (image,) = images.found("us-east-1", "base")
    assert (image.id, image.owner) == (image_id, "ann")
    assert images.ready("us-east-1", "base") == image
    assert images.found("us-east-1", "other") == ()
    images.end(image)
    assert images.found("us-east-1", "base") == ()
