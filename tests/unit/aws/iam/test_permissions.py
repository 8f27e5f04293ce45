"""The IAM policies contain exactly the actions that the code calls; every boto3 call is read from the source."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from botocore.validate import ParamValidator

from cloudgpu.aws import permission_probe
from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, ROLE_GRANTS, SPOT_GRANTS, actions_for, policy
from cloudgpu.aws.iam_grants import granted_actions as granted_by
from cloudgpu.aws.permissions import GRANTS, IMPLIED, OPTIONAL, SESSION_GRANTS, STORAGE_GRANTS, STORAGE_IMPLIED
from cloudgpu.cli.commands.doctor import POLICIES as DOCTOR_POLICIES
from cloudgpu.cloud import Grant

ROOT = Path(__file__).parents[4]
SERVICES = ("ec2", "iam", "ssm", "sts", "s3", "service-quotas", "pricing", "scheduler", "efs", "fsx", "ecr")
AMBIGUOUS = frozenset({"tag_resource", "untag_resource", "list_tags_for_resource", "can_paginate"})
NOT_CALLS = {"s3": {"upload_file": "put_object", "upload_fileobj": "put_object", "download_file": "get_object"}}
MANAGED_POLICY_CHARS = 6144
SELF = (
    "permissions.py",
    "role_permissions.py",
    "session_permissions.py",
    "storage_permissions.py",
    "iam_grants.py",
    "permission_probe.py",
    "permission_probe.py",
)
POLICIES = {
    "docs/reference/iam-policy.json": GRANTS,
    "docs/reference/iam-policy-roles.json": ROLE_GRANTS,
    "docs/reference/iam-boundary.json": BOUNDARY_GRANTS,
    "docs/reference/iam-policy-sessions.json": SESSION_GRANTS,
    "docs/reference/iam-policy-spot.json": SPOT_GRANTS,
    "docs/reference/iam-policy-storage.json": STORAGE_GRANTS,
}
ALL = (*GRANTS, *ROLE_GRANTS, *SESSION_GRANTS, *SPOT_GRANTS, *STORAGE_GRANTS)


def granted() -> frozenset[str]:
    return granted_by(ALL)


@pytest.fixture(scope="module")
def methods() -> Mapping[str, frozenset[str]]:
    """Map each boto3 client method to the actions it needs, over all services that we use."""
    found: dict[str, set[str]] = {}
    for service in SERVICES:
        client = boto3.client(service, "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        for name, operation in client.meta.method_to_api_mapping.items():
            found.setdefault(name, set()).update(actions_for(service, operation))
        for name, method in NOT_CALLS.get(service, {}).items():
            found[name] = found[method]
    return {name: frozenset(actions) for name, actions in found.items()}


def words(source: str) -> Iterator[str]:
    """Yield every attribute and string of a module; an f-string counts by its beginning, followed by `*`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            yield f"{node.values[0].value}*"


def called(methods: Mapping[str, frozenset[str]], source: str) -> Iterator[tuple[str, frozenset[str]]]:
    for word in set(words(source)) - AMBIGUOUS:
        if word in methods:
            yield word, methods[word]
        elif re.fullmatch(r"[a-z]+_[a-z_]{8,}_\*", word):
            matching = [actions for name, actions in methods.items() if name.startswith(word[:-1])]
            if matching:
                yield word, frozenset().union(*matching)


def modules() -> list[Path]:
    return [path for path in sorted((ROOT / "cloudgpu/aws").rglob("*.py")) if path.name not in SELF]


def test_call_scanner_finds_boto3_calls(methods: Mapping[str, frozenset[str]]) -> None:
    source = "ec2.delete_vpc(); pager('list_roles'); getattr(ec2, f'authorize_security_group_{way}')"
    assert dict(called(methods, source)) == {
        "delete_vpc": {"ec2:DeleteVpc"},
        "list_roles": {"iam:ListRoles"},
        "authorize_security_group_*": {"ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress"},
    }


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT / "cloudgpu/aws")))
def test_every_boto3_call_has_permission(methods: Mapping[str, frozenset[str]], path: Path) -> None:
    missing = {
        word: sorted(actions)
        for word, actions in called(methods, path.read_text(encoding="utf-8"))
        if not actions & (granted() | OPTIONAL.keys())
    }
    assert missing == {}, "add the action to GRANTS in cloudgpu/aws/permissions.py, then run scripts/docs.py"


def test_every_permission_has_boto3_call(methods: Mapping[str, frozenset[str]]) -> None:
    needed = {*IMPLIED, *STORAGE_IMPLIED}
    for path in modules():
        for _, actions in called(methods, path.read_text(encoding="utf-8")):
            needed |= actions
    assert granted() - needed == set()


@pytest.mark.parametrize("grants", POLICIES.values(), ids=POLICIES)
def test_policy_fits_managed_policy_size_limit(grants: tuple[Grant, ...]) -> None:
    assert len(json.dumps(policy(grants), separators=(",", ":"))) <= MANAGED_POLICY_CHARS * 0.9, "split the policy"


def test_doctor_prints_every_published_policy() -> None:
    assert sorted(map(str, DOCTOR_POLICIES.values())) == sorted(map(str, POLICIES.values()))


def test_mutating_actions_require_cloudgpu_tag_or_name() -> None:
    """EC2 needs our owner tag, on creation in the request; IAM our name prefix or a service's roles; S3 is free."""
    free = re.compile(r"^(Describe|Get|List|Create|Import|Allocate|Run)")
    for grant in ALL:
        for action in grant.actions:
            service, _, operation = action.partition(":")
            conditions = json.dumps(grant.conditions)
            if service == "ec2" and not free.match(operation):
                assert "aws:ResourceTag/cloudgpu:owner" in conditions, action
            if service == "iam" and not free.match(operation):
                ours = ("/cloudgpu-", "/aws-service-role/s3.data-source.lustre.fsx.amazonaws.com/")
                assert all(any(name in resource for name in ours) for resource in grant.resources), action
            if action == "iam:CreateServiceLinkedRole":
                assert all("/aws-service-role/" in resource for resource in grant.resources)
    makers = [grant for grant in GRANTS if "ec2:RunInstances" in grant.actions]
    assert [("instance" in str(one.resources), "RequestTag" in str(one.conditions)) for one in makers] == [
        (True, True),
        (False, False),
    ]


def test_no_action_is_wildcard() -> None:
    assert not [action for action in granted() if "*" in action or not re.fullmatch(r"[a-z0-9]+:[A-Za-z]+", action)]


@pytest.mark.parametrize("page", POLICIES)
def test_policy_page_is_up_to_date(page: str) -> None:
    assert json.loads((ROOT / page).read_text()) == policy(POLICIES[page]), "run scripts/docs.py"


def test_every_ec2_action_has_dry_run_or_listed_exception() -> None:
    model = boto3.client("ec2", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x").meta.service_model
    ours = {action.removeprefix("ec2:") for action in granted() if action.startswith("ec2:")}
    assert {one for one in ours if "DryRun" not in model.operation_model(one).input_shape.members} == (
        permission_probe.WITHOUT_DRY_RUN & ours
    )
    for operation in ours - permission_probe.WITHOUT_DRY_RUN:
        shape = model.operation_model(operation).input_shape
        report = ParamValidator().validate({"DryRun": True, **permission_probe.EC2_ARGUMENTS.get(operation, {})}, shape)
        assert not report.has_errors(), f"{operation}: {report.generate_report()}"
    assert permission_probe.EC2_ARGUMENTS.keys() <= ours
