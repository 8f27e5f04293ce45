from collections.abc import Iterator
from typing import Any

import pytest

from cloudgpu.aws import permission_probe
from cloudgpu.aws.iam_grants import REQUEST_HAS_TAG, RESOURCE_HAS_TAG
from cloudgpu.aws.permission_probe import probe_permissions
from cloudgpu.cloud import Grant, Identity

LOOK = Grant("Look", "look", ("ec2:DescribeVpcs",))
MAKE = Grant("Make", "make", ("ec2:CreateSecurityGroup",), ("arn:aws:ec2:*:*:security-group/*",), REQUEST_HAS_TAG)
END = Grant("End", "end", ("ec2:TerminateInstances",), ("arn:aws:ec2:*:*:*",), RESOURCE_HAS_TAG)
PASS = Grant("Pass", "pass", ("iam:PassRole",), ("arn:aws:iam::*:role/cloudgpu-*",))
USER = Identity("111122223333", "arn:aws:iam::111122223333:user/ann", "env")


def simulation(grant: Grant, resource: str, decisions: dict[str, str], context: list[dict[str, Any]]) -> Any:
    """Return a stubbed IAM response and the request that it expects."""
    rows = [{"EvalActionName": action, "EvalDecision": decision} for action, decision in decisions.items()]
    asked = {
        "PolicySourceArn": USER.arn,
        "ActionNames": list(grant.actions),
        "ResourceArns": [resource],
        "ContextEntries": context,
    }
    return {"EvaluationResults": rows, "IsTruncated": False}, asked


def tag(where: str) -> list[dict[str, Any]]:
    key = f"aws:{where}/cloudgpu:owner"
    return [{"ContextKeyName": key, "ContextKeyValues": ["doctor"], "ContextKeyType": "string"}]


def test_simulation_uses_tags_and_names_from_grants(scripted) -> None:
    iam = scripted.stub("iam")
    group = "arn:aws:ec2:doctor:doctor:security-group/doctor"
    for answer, asked in (
        simulation(LOOK, "*", {"ec2:DescribeVpcs": "allowed"}, []),
        simulation(MAKE, group, {"ec2:CreateSecurityGroup": "implicitDeny"}, tag("RequestTag")),
        simulation(PASS, "arn:aws:iam::doctor:role/cloudgpu-doctor", {"iam:PassRole": "allowed"}, []),
    ):
        iam.add_response("simulate_principal_policy", answer, asked)
    found = {one.action: one for one in probe_permissions(scripted, USER, (LOOK, MAKE, PASS))}
    assert {action: one.state for action, one in found.items()} == {
        "ec2:CreateSecurityGroup": "failed",
        "ec2:DescribeVpcs": "ok",
        "iam:PassRole": "ok",
    }
    assert found["ec2:CreateSecurityGroup"].why == "IAM policy simulation: implicitDeny"
    scripted.done()


def test_assumed_role_session_is_simulated_with_full_role_arn(scripted) -> None:
    iam = scripted.stub("iam")
    arn = "arn:aws:iam::111122223333:role/aws-reserved/sso.amazonaws.com/gpu"
    role = {"Path": "/", "RoleName": "gpu", "RoleId": "AROA" + "A" * 12, "Arn": arn, "CreateDate": "2026-01-01"}
    iam.add_response("get_role", {"Role": role}, {"RoleName": "gpu"})
    row = {"EvalActionName": "ec2:DescribeVpcs", "EvalDecision": "allowed"}
    asked = {"PolicySourceArn": arn, "ActionNames": ["ec2:DescribeVpcs"], "ResourceArns": ["*"], "ContextEntries": []}
    iam.add_response("simulate_principal_policy", {"EvaluationResults": [row]}, asked)
    session = Identity("1", "arn:aws:sts::111122223333:assumed-role/gpu/ann@example.org", "sso")
    assert [one.state for one in probe_permissions(scripted, session, (LOOK,))] == ["ok"]
    scripted.done()


def test_root_user_is_allowed_without_simulation(scripted) -> None:
    root = Identity("1", "arn:aws:iam::111122223333:root", "env")
    assert {one.state for one in probe_permissions(scripted, root, (LOOK, PASS))} == {"ok"}


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Send one request at a time, because stubbed responses are ordered."""
    monkeypatch.setattr(permission_probe, "_AT_ONCE", 1)
    return


@pytest.mark.usefixtures("one_by_one")
def test_dry_runs_replace_denied_policy_simulation(scripted) -> None:
    scripted.stub("iam").add_client_error("simulate_principal_policy", "AccessDenied")
    scripted.stub("ssm").add_client_error("get_parameter", "AccessDeniedException")
    ec2 = scripted.stub("ec2")
    ec2.add_client_error("describe_vpcs", "DryRunOperation", expected_params={"DryRun": True})
    ec2.add_client_error("create_security_group", "UnauthorizedOperation")
    ec2.add_client_error("terminate_instances", "UnauthorizedOperation")
    found = {one.action: one for one in probe_permissions(scripted, USER, (LOOK, MAKE, END, PASS))}
    assert {action: one.state for action, one in found.items()} == {
        "ec2:DescribeVpcs": "ok",
        "ec2:CreateSecurityGroup": "failed",
        # What does not exist carries no tag: the right policy refuses it too.
        "ec2:TerminateInstances": "unknown",
        "iam:PassRole": "unknown",
    }
    scripted.done()


@pytest.mark.usefixtures("one_by_one")
def test_action_granted_twice_needs_both_permissions(scripted) -> None:
    scripted.stub("iam").add_client_error("simulate_principal_policy", "AccessDenied")
    scripted.stub("ssm").add_response("get_parameter", {"Parameter": {"Value": "ami-0123456789abcdef0"}})
    ec2 = scripted.stub("ec2")
    ec2.add_client_error("run_instances", "DryRunOperation")
    ec2.add_client_error("run_instances", "InvalidAMIID.NotFound")
    twice = (Grant("A", "a", ("ec2:RunInstances",), conditions=REQUEST_HAS_TAG), Grant("B", "b", ("ec2:RunInstances",)))
    (found,) = probe_permissions(scripted, USER, twice)
    assert (found.state, "InvalidAMIID.NotFound" in found.why) == ("unknown", True)
    scripted.done()
