"""Permissions of the node role: its own cluster and its data."""

import json
from typing import Any

import pytest
from program_mock import run_program


def statements(**settings: str) -> list[dict[str, Any]]:
    policy = json.loads(run_program(**settings).named("RolePolicy", "demo")["policy"])
    found: list[dict[str, Any]] = policy["Statement"]
    return found


OWN = {
    "Effect": "Allow",
    "Action": ["ec2:TerminateInstances"],
    "Resource": "arn:aws:ec2:us-east-1:*:instance/*",
    "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": "tok-1"}},
}


def test_node_role_without_data_can_only_terminate_its_cluster() -> None:
    assert statements() == [OWN]


def test_data_is_readable_only_below_its_prefix() -> None:
    assert statements(readable='["data/imagenet/", "other"]') == [
        OWN,
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": "arn:aws:s3:::data",
            "Condition": {"StringLike": {"s3:prefix": "imagenet/*"}},
        },
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": "arn:aws:s3:::other"},
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": ["arn:aws:s3:::data/imagenet", "arn:aws:s3:::data/imagenet/*", "arn:aws:s3:::other/*"],
        },
    ]


def test_outputs_are_writable_only_below_their_prefix() -> None:
    objects = statements(writable='["runs/demo"]')[-1]
    assert objects["Resource"] == "arn:aws:s3:::runs/demo/*"
    assert objects["Action"] == ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"]


def test_policy_contains_no_wildcard_actions_or_resources() -> None:
    everything = statements(readable='["data/x"]', writable='["runs"]')
    actions = [action for one in everything for action in one["Action"]]
    assert not [action for action in actions if "*" in action]
    assert not [one for one in everything if one["Resource"] == "*"]
    # Registry access uses the caller's login, so the role has no ECR permissions.
    assert not [action for action in actions if action.startswith("ecr:")]


def test_user_provided_role_is_not_modified() -> None:
    recorder = run_program(roleName="own-role", readable='["data"]')
    assert [one.name for one in recorder.resources if one.typ.endswith(":RolePolicy")] == ["demo-belt"]


@pytest.mark.parametrize(
    ("zone", "service"), [("us-east-1c", "ec2.amazonaws.com"), ("cn-north-1a", "ec2.amazonaws.com.cn")]
)
def test_only_ec2_may_use_the_role(zone: str, service: str) -> None:
    trust = json.loads(run_program(zone=zone).named("Role", "demo")["assumeRolePolicy"])
    assert trust["Statement"] == [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}]
