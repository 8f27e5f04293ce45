"""What `docs/explanation/security.md` says about an identity with the published policies, evaluated as IAM does."""

from pathlib import Path
from typing import Any

import pytest

from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, ROLE_GRANTS, grants_for_boundary, policy
from cloudgpu.aws.permissions import GRANTS, STORAGE_GRANTS
from tests.iam_evaluator import allowed

PAGE = Path(__file__).parents[4] / "docs/explanation/security.md"
ACCOUNT = "123456789012"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/cloudgpu-boundary"
OTHER_POLICY = f"arn:aws:iam::{ACCOUNT}:policy/other"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/cloudgpu-demo-us-east-1"
OTHER_ROLE = f"arn:aws:iam::{ACCOUNT}:role/admin"
PROFILE = f"arn:aws:iam::{ACCOUNT}:instance-profile/cloudgpu-demo-us-east-1"
INSTANCE = f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/i-0123456789abcdef0"
GROUP = f"arn:aws:ec2:us-east-1:{ACCOUNT}:security-group/sg-1"
VOLUME = f"arn:aws:ec2:us-east-1:{ACCOUNT}:volume/vol-1"
OBJECT, BUCKET = "arn:aws:s3:::payroll/2026.csv", "arn:aws:s3:::payroll"
BOUNDED = {"iam:PermissionsBoundary": BOUNDARY}
OURS = {"aws:ResourceTag/cloudgpu:owner": "bob"}
NEW = {"aws:RequestTag/cloudgpu:owner": "ann"}
NODE = {"aws:ResourceTag/cloudgpu:token": "tok"}
TO_EC2 = {"iam:PassedToService": "ec2.amazonaws.com"}
IDENTITY = [policy(GRANTS), policy(ROLE_GRANTS)]
STORAGE = [*IDENTITY, policy(STORAGE_GRANTS)]
ADMINISTRATOR: dict[str, Any] = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}],
}
Call = tuple[str, str, dict[str, str]]

CAN: dict[str, list[Call]] = {
    "launch instances of every type, with an owner tag of cloudgpu": [
        ("ec2:CreateFleet", INSTANCE, NEW),
        ("ec2:RunInstances", INSTANCE, NEW),
        ("ec2:RunInstances", f"arn:aws:ec2:us-east-1:{ACCOUNT}:subnet/subnet-1", {}),
    ],
    "terminate, change and delete every EC2 resource that has an owner tag of cloudgpu": [
        ("ec2:TerminateInstances", INSTANCE, OURS),
        ("ec2:DeleteVolume", VOLUME, OURS),
        ("ec2:CreateTags", INSTANCE, OURS),
    ],
    "open every port of a security group that has an owner tag of cloudgpu": [
        ("ec2:AuthorizeSecurityGroupIngress", GROUP, OURS)
    ],
    "read and write objects in every bucket of the account, and create buckets": [
        ("s3:GetObject", OBJECT, {}),
        ("s3:PutObject", OBJECT, {}),
        ("s3:ListBucket", BUCKET, {}),
        ("s3:CreateBucket", BUCKET, {}),
    ],
    "read the console output of every instance, and every image in the account's container registries": [
        ("ec2:GetConsoleOutput", INSTANCE, {}),
        ("ecr:GetDownloadUrlForLayer", f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/payroll", {}),
    ],
    "create roles with names that begin with `cloudgpu-`": [
        ("iam:CreateRole", ROLE, BOUNDED),
        ("iam:PutRolePolicy", ROLE, BOUNDED),
        ("iam:AttachRolePolicy", ROLE, BOUNDED),
    ],
    "change who may assume such a role, and delete it": [
        ("iam:UpdateAssumeRolePolicy", ROLE, {}),
        ("iam:DeleteRolePolicy", ROLE, {}),
        ("iam:DeleteRole", ROLE, {}),
    ],
    "pass such a role to EC2 and to EventBridge Scheduler": [
        ("iam:PassRole", ROLE, TO_EC2),
        ("iam:PassRole", ROLE, {"iam:PassedToService": "scheduler.amazonaws.com"}),
        ("iam:AddRoleToInstanceProfile", PROFILE, {}),
    ],
}
CANNOT: dict[str, list[Call]] = {
    "create a role without the boundary, or with another one": [
        ("iam:CreateRole", ROLE, {}),
        ("iam:CreateRole", ROLE, {"iam:PermissionsBoundary": OTHER_POLICY}),
        ("iam:CreateRole", ROLE, {"iam:PermissionsBoundary": f"{BOUNDARY}-2"}),
        ("iam:CreateRole", ROLE, {"iam:PermissionsBoundary": "arn:aws:iam::aws:policy/AdministratorAccess"}),
        ("iam:CreateRole", ROLE, {"iam:PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/x/cloudgpu-boundary"}),
    ],
    "add a policy to a role that does not have the boundary": [
        ("iam:PutRolePolicy", ROLE, {}),
        ("iam:PutRolePolicy", ROLE, {"iam:PermissionsBoundary": OTHER_POLICY}),
        ("iam:AttachRolePolicy", ROLE, {}),
    ],
    "remove or replace the boundary of a role": [
        ("iam:DeleteRolePermissionsBoundary", ROLE, BOUNDED),
        ("iam:PutRolePermissionsBoundary", ROLE, BOUNDED),
        ("iam:PutRolePermissionsBoundary", ROLE, {"iam:PermissionsBoundary": OTHER_POLICY}),
    ],
    "create, change or delete managed policies, and so not the boundary itself": [
        (f"iam:{action}", BOUNDARY, {})
        for action in ("CreatePolicy", "CreatePolicyVersion", "SetDefaultPolicyVersion", "DeletePolicy", "TagPolicy")
    ],
    "change roles with other names, create users or create access keys": [
        ("iam:CreateRole", OTHER_ROLE, BOUNDED),
        ("iam:PutRolePolicy", OTHER_ROLE, BOUNDED),
        ("iam:UpdateAssumeRolePolicy", OTHER_ROLE, {}),
        ("iam:DeleteRole", OTHER_ROLE, {}),
        *(
            (f"iam:{action}", f"arn:aws:iam::{ACCOUNT}:user/cloudgpu-ann", {})
            for action in ("CreateUser", "CreateAccessKey", "CreateLoginProfile", "PutUserPolicy", "AttachUserPolicy")
        ),
    ],
    "pass a role with another name, or pass any role to another service": [
        ("iam:PassRole", OTHER_ROLE, TO_EC2),
        ("iam:PassRole", ROLE, {"iam:PassedToService": "lambda.amazonaws.com"}),
        ("iam:PassRole", ROLE, {}),
    ],
    "terminate, stop, change or tag instances that cloudgpu did not create": [
        ("ec2:TerminateInstances", INSTANCE, {}),
        ("ec2:TerminateInstances", INSTANCE, {"aws:ResourceTag/owner": "ann"}),
        ("ec2:CreateTags", INSTANCE, {}),
        ("ec2:CreateTags", INSTANCE, NEW),
        *((f"ec2:{action}", INSTANCE, OURS) for action in ("StopInstances", "ModifyInstanceAttribute")),
    ],
    "launch instances without an owner tag": [("ec2:RunInstances", INSTANCE, {}), ("ec2:CreateFleet", INSTANCE, {})],
    "delete objects, or change the policy of a bucket": [
        ("s3:DeleteObject", OBJECT, {}),
        ("s3:DeleteObjectVersion", OBJECT, {}),
        ("s3:PutBucketPolicy", BUCKET, {}),
        ("s3:DeleteBucket", BUCKET, {}),
    ],
}
ROLE_CAN: list[Call] = [
    ("s3:GetObject", OBJECT, {}),
    ("s3:DeleteObject", OBJECT, {}),
    ("ec2:TerminateInstances", INSTANCE, NODE),
    ("ssmmessages:OpenDataChannel", "*", {}),
]
ROLE_CANNOT: list[Call] = [
    *(("iam:" + action, ROLE, BOUNDED) for action in ("CreateRole", "PutRolePolicy", "PassRole", "CreateUser")),
    ("ec2:RunInstances", INSTANCE, NEW),
    ("ec2:TerminateInstances", INSTANCE, {}),
    ("ec2:DescribeInstances", "*", {}),
    ("s3:PutBucketPolicy", BUCKET, {}),
    ("sts:AssumeRole", OTHER_ROLE, {}),
    ("secretsmanager:GetSecretValue", "*", {}),
    ("lambda:CreateFunction", "*", {}),
    ("kms:Decrypt", "*", {}),
]


def page_items(before: str) -> list[str]:
    """Return the items of the list that follows a line of the page."""
    after = PAGE.read_text(encoding="utf-8").split(before, 1)[1].lstrip("\n").split("\n\n", 1)[0]
    return [" ".join(item.split()).rstrip(".;,") for item in after.removeprefix("- ").split("\n- ")]


def test_page_makes_exactly_the_claims_that_are_tested() -> None:
    assert [item.partition(":")[0] for item in page_items("and nothing else **can**:")] == list(CAN)
    assert [item.partition(":")[0] for item in page_items("It **cannot**:")] == list(CANNOT)


@pytest.mark.parametrize("claim", CAN)
def test_identity_can(claim: str) -> None:
    assert [call for call in CAN[claim] if not allowed(IDENTITY, *call)] == []


@pytest.mark.parametrize("claim", CANNOT)
def test_identity_cannot(claim: str) -> None:
    assert [call for call in CANNOT[claim] if allowed(IDENTITY, *call)] == []


def test_storage_policy_adds_deleting_only_in_buckets_of_cloudgpu() -> None:
    assert allowed(STORAGE, "s3:DeleteObject", "arn:aws:s3:::cloudgpu-sets-1234/x")
    assert not allowed(STORAGE, "s3:DeleteObject", OBJECT)
    loosened = [claim for claim, calls in CANNOT.items() if any(allowed(STORAGE, *call) for call in calls)]
    assert loosened == []


def test_policies_of_a_role_grant_at_most_what_the_boundary_allows() -> None:
    """A role created with these permissions can have any policy; the boundary limits it."""
    boundary = policy(BOUNDARY_GRANTS)
    assert [call for call in ROLE_CAN if not allowed([ADMINISTRATOR], *call, boundary=boundary)] == []
    assert [call for call in ROLE_CANNOT if allowed([ADMINISTRATOR], *call, boundary=boundary)] == []


@pytest.mark.parametrize(("arn", "ok"), [("", False), (OTHER_POLICY, False), (BOUNDARY, True)])
def test_doctor_tests_the_calls_as_the_settings_make_them(arn: str, ok: bool) -> None:
    grants = grants_for_boundary(ROLE_GRANTS, arn)
    (tested,) = [grant for grant in grants if "iam:CreateRole" in grant.actions]
    context = {key: str(value) for keys in tested.conditions.values() for key, value in keys.items()}
    assert allowed(IDENTITY, "iam:CreateRole", ROLE, context) is ok
    assert [grant.name for grant in grants] == [grant.name for grant in ROLE_GRANTS]
