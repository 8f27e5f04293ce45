"""The common first failures of a new account: no quota, no service-linked role, and a region that is not enabled."""

import boto3
import pytest

from cloudgpu.rehearsal import client
from tests.rehearsal.upgrade.previous import previewed

pytestmark = pytest.mark.rehearsal


@pytest.fixture(scope="module")
def workspace(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("workspace")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        yield made


@pytest.fixture
def new_account(workspace):
    workspace.run("rehearsal", "fault", "apply", "new-account")
    yield workspace
    workspace.run("rehearsal", "fault", "clear")


def test_doctor_names_every_lack_of_a_new_account_with_the_command_that_fixes_it(new_account):
    checks = {row["name"]: row for row in new_account.json("doctor", "--on", "rehearsal", code=15)["checks"]}
    for code in ("L-417A185B", "L-DB2E81BA", "L-3819A6DF", "L-7212CCBC"):
        quota = checks[f"quota {code}"]
        assert quota["state"] == "failed"
        assert quota["fix"] == (
            "request an increase: aws service-quotas request-service-quota-increase --service-code ec2 "
            f"--quota-code {code} --desired-value 96 --region us-east-1"
        )
    role = checks["role for spot instances"]
    assert (role["state"], role["detail"]) == ("warning", "no service-linked role AWSServiceRoleForEC2Spot")
    assert role["fix"] == "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"


def test_plan_names_the_quota_and_the_spot_role_with_their_commands(new_account):
    planned = new_account.json("plan", "plain", "--set", "resources.market=spot", code=7)
    found = {row["check"]: row for row in planned["findings"]}
    assert "aws service-quotas request-service-quota-increase" in found["quota"]["fix"]
    assert found["spot-role"]["severity"] == "warning"
    assert "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com" in found["spot-role"]["fix"]


def test_spot_launch_without_the_role_fails_by_name_and_works_after_the_command_of_the_hint(workspace):
    client.put_script(workspace.cloud, {"cloud": {"absent_service_roles": ["spot.amazonaws.com"]}})
    up = ("up", "plain", "--yes", "--set", "resources.market=spot", "--set", "resources.nodes=1")
    done = workspace.run(*up, code=8)
    assert "AuthFailure.ServiceLinkedRoleCreationNotPermitted" in done.stderr
    assert "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com" in done.stderr
    assert workspace.left() == {}
    _client(workspace, "iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    doctor = workspace.json("doctor", "--on", "rehearsal")
    assert {row["name"]: row["state"] for row in doctor["checks"]}["role for spot instances"] == "ok"
    workspace.run(*up)
    workspace.run("down", "plain", "--yes")
    workspace.run("rehearsal", "fault", "clear")


@pytest.mark.parametrize(
    ("kind", "options", "service", "words"),
    [
        ("efs", (), "elasticfilesystem.amazonaws.com", "User is not authorized to perform that action"),
        (
            "lustre",
            ("--size", "1200", "--zone", "us-east-1c"),
            "fsx.amazonaws.com",
            "Amazon FSx is unable to create Service-Linked-Role",
        ),
    ],
)
def test_storage_without_the_role_leaves_nothing_and_works_after_the_command_of_the_hint(
    new_account, kind, options, service, words
):
    create = ("storage", "create", f"new-{kind}", "--kind", kind, *options, "--on", "rehearsal", "--yes")
    failed = new_account.run(*create, code=None)
    assert failed.returncode == 8, failed.stdout + failed.stderr
    assert words in failed.stderr
    fix = f"aws iam create-service-linked-role --aws-service-name {service}"
    assert f"run `{fix}` once, or allow what `cloudgpu doctor --storage --policy` prints" in failed.stderr
    assert new_account.left() == {}
    _client(new_account, "iam").create_service_linked_role(AWSServiceName=service)
    new_account.run(*create)
    new_account.run("storage", "delete", f"new-{kind}", "--delete-data", "--on", "rehearsal", "--yes")
    assert new_account.left() == {}


def test_linked_bucket_without_the_right_to_its_role_is_explained(workspace):
    service = "s3.data-source.lustre.fsx.amazonaws.com"
    client.put_script(workspace.cloud, {"cloud": {"absent_service_roles": [service]}})
    bucket = _client(workspace, "s3")
    bucket.create_bucket(Bucket="sets-of-all")
    linked = (
        "--kind",
        "lustre",
        "--size",
        "1200",
        "--zone",
        "us-east-1c",
        "--linked",
        "s3://sets-of-all",
        "--on",
        "rehearsal",
        "--yes",
    )
    failed = workspace.run("storage", "create", "fast", *linked, code=8)
    assert "Amazon FSx is unable to create Service-Linked-Role to access the S3 bucket" in failed.stderr
    assert "allow what `cloudgpu doctor --storage --policy` prints (LinkBuckets)" in failed.stderr
    bucket.delete_bucket(Bucket="sets-of-all")
    workspace.run("rehearsal", "fault", "clear")
    assert workspace.left() == {}


def test_region_that_is_not_enabled_is_named_by_doctor_and_plan(workspace):
    found = workspace.json("doctor", "--on", "rehearsal", "--region", "eu-south-1", code=15)
    (failed,) = [row for row in found["checks"] if row["state"] == "failed"]
    assert (failed["name"], failed["detail"]) == ("region", "eu-south-1 is not enabled for this account")
    assert failed["fix"].startswith("`aws account enable-region --region-name eu-south-1`")
    planned = workspace.json("plan", "plain", "--set", "resources.regions=eu-south-1", code=7)
    found = [row for row in planned["findings"] if row["check"] == "region-enabled"]
    assert found[0]["fix"].startswith("`aws account enable-region --region-name eu-south-1`")


def _client(workspace, service):
    return boto3.client(
        service,
        region_name="us-east-1",
        endpoint_url=workspace.cloud.url,
        aws_access_key_id=workspace.cloud.access_key_id,
        aws_secret_access_key=workspace.cloud.secret_access_key,
    )


def test_boundary_of_the_settings_limits_the_roles_of_a_cluster(workspace):
    arn = "arn:aws:iam::123456789012:policy/cloudgpu-boundary"
    env = {"CLOUDGPU_PERMISSIONS_BOUNDARY": arn}
    up = ("up", "bounded", "--yes")
    workspace.recipe("bounded", checkpoint="{path: ckpt, to: 's3://our-runs/a,b/{run}'}")
    _client(workspace, "s3").create_bucket(Bucket="our-runs")
    planned = workspace.json("plan", "bounded", code=7, env=env)
    (missing,) = [row for row in planned["findings"] if row["check"] == "named"]
    assert missing["message"] == f"permissions boundary {arn} does not exist"
    boundary = workspace.run("doctor", "--policy", "--part", "boundary").stdout
    iam = _client(workspace, "iam")
    iam.create_policy(PolicyName="cloudgpu-boundary", PolicyDocument=boundary)
    workspace.run(*up, env=env)
    roles = [role["RoleName"] for role in iam.list_roles()["Roles"] if role["RoleName"].startswith("cloudgpu-bounded")]
    assert len(roles) == 2
    for role in roles:
        assert iam.get_role(RoleName=role)["Role"]["PermissionsBoundary"]["PermissionsBoundaryArn"] == arn
    nodes = iam.get_role_policy(RoleName="cloudgpu-bounded-us-east-1", PolicyName="own-cluster")["PolicyDocument"]
    assert nodes["Statement"][-1]["Resource"] == "arn:aws:s3:::our-runs/a,b/*/*"
    with pytest.raises(iam.exceptions.DeleteConflictException):
        iam.delete_policy(PolicyArn=arn)
    assert previewed(workspace, "bounded") == ["same"]
    workspace.run("down", "bounded", "--yes")
    iam.delete_policy(PolicyArn=arn)
    with pytest.raises(iam.exceptions.NoSuchEntityException, match="does not exist or is not attachable"):
        iam.create_role(RoleName="x", AssumeRolePolicyDocument="{}", PermissionsBoundary=arn)
    _client(workspace, "s3").delete_bucket(Bucket="our-runs")
    assert workspace.left() == {}
