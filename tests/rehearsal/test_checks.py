"""Plan checks against the account, by whole commands: what cannot be read is reported as unknown."""

import boto3
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

DATA = "[{name: images, from: 's3://our-images/set/', to: /data/images}]"
DENIED = {"code": "AccessDenied", "http": 403}


@pytest.fixture(scope="module")
def one_cloud(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("one")) as made:
        yield made


@pytest.fixture
def shared(one_cloud):
    """Share a cloud between tests that do not depend on fresh quota reads."""
    yield one_cloud
    client.put_faults(one_cloud.cloud, [])


def access(workspace):
    cloud = workspace.cloud
    return {
        "endpoint_url": cloud.url,
        "aws_access_key_id": cloud.access_key_id,
        "aws_secret_access_key": cloud.secret_access_key,
    }


def s3(workspace, region="us-east-1"):
    return boto3.client("s3", region_name=region, **access(workspace))


def said(workspace, *options, code=0, env=None):
    told = workspace.json("plan", "plain", *options, code=code, env=env)
    return {one["check"]: (one["severity"], one["message"]) for one in told["findings"]}


def test_quota_of_96_vcpus_allows_only_a_single_node(workspace):
    workspace.recipe()
    client.put_quotas(workspace.cloud, {"us-east-1/p/on-demand": 96})
    severity, message = said(workspace, code=7)["quota"]
    assert severity == "error"
    assert "need 192 vCPUs" in message
    assert message.endswith("(L-417A185B) allow only 96")
    assert client.faults(workspace.cloud)["mutating_calls"] == 0
    assert "quota" not in said(workspace, "--set", "resources.nodes=1")
    # The rehearser's own change is known at once; an account's limits are remembered for some minutes.
    workspace.run("rehearsal", "quota", "us-east-1/p/on-demand=192")
    assert "quota" not in said(workspace)
    workspace.run("rehearsal", "fault", "apply", "quota-bound")
    assert said(workspace, code=7)["quota"][0] == "error"
    workspace.run("rehearsal", "fault", "clear")
    assert "quota" not in said(workspace)


def test_denied_quota_and_region_reads_are_reported_as_unknown(workspace):
    workspace.recipe()
    client.put_faults(workspace.cloud, [{"action": "ListServiceQuotas", **DENIED}])
    assert said(workspace)["quota"][0] == "unknown"
    client.put_faults(workspace.cloud, [{"action": "DescribeRegions", "code": "UnauthorizedOperation", "http": 403}])
    severity, message = said(workspace)["named"]
    assert severity == "unknown"
    assert message.startswith("cannot tell which regions the account has enabled")


def test_plan_reports_missing_distant_and_unreadable_datasets(shared):
    shared.recipe(data=DATA)
    assert said(shared, code=7)["dataset"] == ("error", "dataset images: there is no bucket our-images")
    s3(shared, "us-west-2").create_bucket(
        Bucket="our-images", CreateBucketConfiguration={"LocationConstraint": "us-west-2"}
    )
    assert said(shared, code=7)["dataset"] == (
        "error",
        "dataset images: there are no objects under s3://our-images/set/",
    )
    s3(shared, "us-west-2").put_object(Bucket="our-images", Key="set/a", Body=b"x" * 1024)
    found = said(shared)
    assert "dataset" not in found
    assert found["data-region"][1].startswith(
        "dataset images is in us-west-2, but nodes may run in us-east-1: 2 copies"
    )
    client.put_faults(shared.cloud, [{"action": "ListObjectsV2", **DENIED}, {"action": "HeadBucket", **DENIED}])
    assert said(shared)["dataset"][0] == "unknown"


def test_missing_key_pair_and_role_are_reported_with_their_settings(shared):
    shared.recipe()
    told = shared.json("plan", "plain", code=7, env={"CLOUDGPU_KEY_NAME": "ann", "CLOUDGPU_ROLE_NAME": "gpu"})
    named = [(one["message"], one["fix"]) for one in told["findings"] if one["check"] == "named"]
    assert named == [
        ("key pair ann does not exist in us-east-1", "correct the setting key_name: `cloudgpu config`"),
        ("role gpu does not exist", "correct the setting role_name: `cloudgpu config`"),
    ]


def test_missing_security_group_is_reported_with_its_setting(shared):
    shared.recipe()
    known = boto3.client("ec2", region_name="us-east-1", **access(shared)).describe_subnets()["Subnets"][0]
    env = {"CLOUDGPU_SUBNET_ID": known["SubnetId"], "CLOUDGPU_SECURITY_GROUP_ID": "sg-0123456789abcdef0"}
    told = shared.json("plan", "plain", code=7, env=env)
    named = [(one["message"], one["fix"]) for one in told["findings"] if one["check"] == "named"]
    assert named == [
        (
            "security group sg-0123456789abcdef0 does not exist in us-east-1",
            "correct the setting security_group_id: `cloudgpu config`",
        )
    ]


def test_offline_plan_lists_the_skipped_checks(shared):
    shared.recipe(data=DATA)
    severity, message = said(shared, "--offline")["offline"]
    assert severity == "unknown"
    assert "data in S3" in message
