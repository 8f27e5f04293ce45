"""The policy holds what the code calls, and no more: the code itself is read for every call of boto3 in it."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import boto3
import pytest
from botocore.validate import ParamValidator

from cloudgpu.aws.iam import dry_runs
from cloudgpu.aws.iam.grants import Grant, actions_for, policy
from cloudgpu.aws.iam.grants import granted_actions as granted_by
from cloudgpu.aws.iam.permissions import GRANTS, IMPLIED, OPTIONAL
from cloudgpu.aws.iam.session_permissions import SESSION_GRANTS
from cloudgpu.aws.iam.storage_permissions import STORAGE_GRANTS, STORAGE_IMPLIED

ROOT = Path(__file__).parents[4]
SERVICES = ("ec2", "iam", "ssm", "sts", "s3", "service-quotas", "pricing", "scheduler", "efs", "fsx", "ecr")
AMBIGUOUS = frozenset({"tag_resource", "untag_resource", "list_tags_for_resource", "can_paginate"})
NOT_CALLS = {"s3": {"upload_file": "put_object", "upload_fileobj": "put_object", "download_file": "get_object"}}
MANAGED_POLICY_CHARS = 6144
SELF = (
    "permissions.py",
    "session_permissions.py",
    "storage_permissions.py",
    "grants.py",
    "dry_runs.py",
    "permission_probe.py",
)
POLICIES = {
    "docs/reference/iam-policy.json": GRANTS,
    "docs/reference/iam-policy-sessions.json": SESSION_GRANTS,
    "docs/reference/iam-policy-storage.json": STORAGE_GRANTS,
}
ALL = (*GRANTS, *SESSION_GRANTS, *STORAGE_GRANTS)


def granted() -> frozenset[str]:
    return granted_by(ALL)


@pytest.fixture(scope="module")
def methods() -> Mapping[str, frozenset[str]]:
    """Method of a boto3 client -> the actions that it needs, in whichever of our services has it."""
    found: dict[str, set[str]] = {}
    for service in SERVICES:
        client = boto3.client(service, "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
        for name, operation in client.meta.method_to_api_mapping.items():
            found.setdefault(name, set()).update(actions_for(service, operation))
        for name, method in NOT_CALLS.get(service, {}).items():
            found[name] = found[method]
    return {name: frozenset(actions) for name, actions in found.items()}


def words(source: str) -> Iterator[str]:
    """Every attribute and string of a module; a string that is put together counts by how it begins, with a `*`."""
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


def test_the_reader_sees_calls(methods: Mapping[str, frozenset[str]]) -> None:
    source = "ec2.delete_vpc(); pager('list_roles'); getattr(ec2, f'authorize_security_group_{way}')"
    assert dict(called(methods, source)) == {
        "delete_vpc": {"ec2:DeleteVpc"},
        "list_roles": {"iam:ListRoles"},
        "authorize_security_group_*": {"ec2:AuthorizeSecurityGroupEgress", "ec2:AuthorizeSecurityGroupIngress"},
    }


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT / "cloudgpu/aws")))
def test_no_call_lacks_its_permission(methods: Mapping[str, frozenset[str]], path: Path) -> None:
    missing = {
        word: sorted(actions)
        for word, actions in called(methods, path.read_text(encoding="utf-8"))
        if not actions & (granted() | OPTIONAL.keys())
    }
    assert missing == {}, "add the action to GRANTS in cloudgpu/aws/iam/permissions.py, then run scripts/docs.py"


def test_no_permission_is_without_a_call(methods: Mapping[str, frozenset[str]]) -> None:
    needed = {*IMPLIED, *STORAGE_IMPLIED}
    for path in modules():
        for _, actions in called(methods, path.read_text(encoding="utf-8")):
            needed |= actions
    assert granted() - needed == set()


@pytest.mark.parametrize("grants", POLICIES.values(), ids=POLICIES)
def test_it_fits_into_a_managed_policy(grants: tuple[Grant, ...]) -> None:
    assert len(json.dumps(policy(grants), separators=(",", ":"))) <= MANAGED_POLICY_CHARS


def test_nothing_is_changed_or_ended_without_a_tag_or_a_name_of_ours() -> None:
    """Making needs the tag in the request, ending needs it on the thing; IAM has our names, S3 is the user's own."""
    free = re.compile(r"^(Describe|Get|List|Create|Import|Allocate|Run)")
    for grant in ALL:
        for action in grant.actions:
            service, _, operation = action.partition(":")
            conditions = json.dumps(grant.conditions)
            if service == "ec2" and not free.match(operation):
                assert "aws:ResourceTag/cloudgpu:owner" in conditions, action
            if service == "iam" and not free.match(operation):
                assert all("/cloudgpu-" in resource for resource in grant.resources), action
    makers = [grant for grant in GRANTS if "ec2:RunInstances" in grant.actions]
    assert [("instance" in str(one.resources), "RequestTag" in str(one.conditions)) for one in makers] == [
        (True, True),
        (False, False),
    ]


def test_no_action_is_a_pattern() -> None:
    assert not [action for action in granted() if "*" in action or not re.fullmatch(r"[a-z0-9]+:[A-Za-z]+", action)]


@pytest.mark.parametrize("page", POLICIES)
def test_the_page_is_up_to_date(page: str) -> None:
    assert json.loads((ROOT / page).read_text()) == policy(POLICIES[page]), "run scripts/docs.py"


def test_every_ec2_action_can_be_tried_or_is_said_to_have_no_dry_run() -> None:
    model = boto3.client("ec2", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x").meta.service_model
    ours = {action.removeprefix("ec2:") for action in granted() if action.startswith("ec2:")}
    assert {one for one in ours if "DryRun" not in model.operation_model(one).input_shape.members} == (
        dry_runs.WITHOUT_DRY_RUN & ours
    )
    for operation in ours - dry_runs.WITHOUT_DRY_RUN:
        shape = model.operation_model(operation).input_shape
        report = ParamValidator().validate({"DryRun": True, **dry_runs.EC2_ARGUMENTS.get(operation, {})}, shape)
        assert not report.has_errors(), f"{operation}: {report.generate_report()}"
    assert dry_runs.EC2_ARGUMENTS.keys() <= ours
