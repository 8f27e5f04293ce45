"""Policies of roles are evaluated as IAM documents it: explicit denies win, operators compare as named."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from moto.iam.models import iam_backends

from cloudgpu.rehearsal.aws_api.iam_service import allows, trusts

ARN = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
ALLOW = {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}


def role(*statements: dict[str, Any], trust: Any = None) -> SimpleNamespace:
    return SimpleNamespace(policies={"inline": {"Statement": list(statements)}}, assume_role_policy_document=trust)


def conditional(operator: str, value: Any) -> dict[str, Any]:
    return {**ALLOW, "Condition": {operator: {"aws:ResourceTag/cluster": value}}}


@pytest.mark.parametrize(
    "deny",
    [
        {"Effect": "Deny", "Action": "ec2:TerminateInstances", "Resource": "*"},
        {"Effect": "Deny", "Action": ["s3:*", "ec2:Terminate*"], "Resource": ARN},
        {"Effect": "Deny", "NotAction": "s3:*", "Resource": "*"},
        {**conditional("StringEquals", "lab"), "Effect": "Deny"},
        {**conditional("NumericLessThan", "1"), "Effect": "Deny"},
    ],
)
def test_explicit_deny_overrides_allow(deny: dict[str, Any]) -> None:
    assert allows(role(ALLOW), "ec2:TerminateInstances", ARN, {"cluster": "lab"})
    assert not allows(role(ALLOW, deny), "ec2:TerminateInstances", ARN, {"cluster": "lab"})


def test_deny_of_another_action_resource_or_tag_changes_nothing() -> None:
    others = (
        {"Effect": "Deny", "Action": "ec2:RunInstances", "Resource": "*"},
        {"Effect": "Deny", "Action": "ec2:*", "Resource": ARN + "2"},
        {**conditional("StringEquals", "other"), "Effect": "Deny"},
    )
    assert allows(role(ALLOW, *others), "ec2:TerminateInstances", ARN, {"cluster": "lab"})


@pytest.mark.parametrize(
    ("operator", "value", "granted"),
    [
        ("StringEquals", "lab", True),
        ("StringEquals", ["other", "lab"], True),
        ("StringEquals", "la*", False),
        ("StringEquals", "*", False),
        ("StringLike", "la*", True),
        ("StringLike", "l?b", True),
        ("StringLike", "[l]ab", False),
        ("ArnLike", "la*", True),
        ("ArnEquals", "la*", True),
        ("NumericEquals", "lab", False),
    ],
)
def test_condition_operator_compares_as_named(operator: str, value: Any, granted: bool) -> None:
    found = allows(role(conditional(operator, value)), "ec2:TerminateInstances", ARN, {"cluster": "lab"})
    assert found is granted


def test_condition_on_a_missing_key_grants_nothing() -> None:
    assert not allows(role(conditional("StringLike", "*")), "ec2:TerminateInstances", ARN, {})


def test_trust_policy_with_deny_is_not_trust() -> None:
    trusted = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    assert trusts(role(trust={"Statement": [trusted]}), "ec2.amazonaws.com", ARN)
    denied = {"Statement": [trusted, {**trusted, "Effect": "Deny"}]}
    assert not trusts(role(trust=denied), "ec2.amazonaws.com", ARN)


def test_permissions_boundary_limits_what_a_policy_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    arn = "arn:aws:iam::123456789012:policy/boundary"
    bounded = role({**ALLOW, "Action": "*"})
    bounded.permissions_boundary_arn = arn
    request = ("ec2:TerminateInstances", ARN, {"cluster": "lab"})
    policies = iam_backends["123456789012"]["aws"].managed_policies
    assert not allows(bounded, *request), "a boundary that does not exist"
    limits = ((ALLOW, True), ({**ALLOW, "Action": "s3:*"}, False), ({**ALLOW, "Effect": "Deny"}, False))
    for statement, granted in limits:
        version = SimpleNamespace(version_id="v2", document=json.dumps({"Statement": [statement]}))
        old = SimpleNamespace(version_id="v1", document=json.dumps({"Statement": [{**ALLOW, "Action": "*"}]}))
        monkeypatch.setitem(policies, arn, SimpleNamespace(versions=[old, version], default_version_id="v2"))
        assert allows(bounded, *request) is granted
    bounded.permissions_boundary_arn = "arn:aws:iam::aws:policy/PowerUserAccess"
    assert allows(bounded, *request)
