"""Existing instance profiles: whether the caller may pass their role, and what the role allows."""

import pytest

from cloudgpu.aws.permission_probe import denied_role_actions, inspect_profile
from cloudgpu.cloud import Identity
from cloudgpu.plan.named_resources import ProfileSeen

ROLE = "arn:aws:iam::111122223333:role/gpu"
USER = "arn:aws:iam::111122223333:user/ann"
CONTEXT = {
    "ContextKeyName": "iam:PassedToService",
    "ContextKeyValues": ["ec2.amazonaws.com"],
    "ContextKeyType": "string",
}
PASS = {
    "PolicySourceArn": USER,
    "ActionNames": ["iam:PassRole"],
    "ResourceArns": [ROLE],
    "ContextEntries": [CONTEXT],
}


@pytest.fixture
def account(scripted, monkeypatch: pytest.MonkeyPatch):
    """An account with the profile `gpu`. The function returns the stub of IAM."""

    def with_roles(*names: str, caller: str = USER):
        identity = Identity("111122223333", caller, "env")
        monkeypatch.setattr(type(scripted), "identity", lambda _: identity, raising=False)
        dates = {"CreateDate": "2026-01-01", "Path": "/"}
        roles = [{"RoleName": name, "RoleId": "AROA" + "A" * 12, "Arn": ROLE, **dates} for name in names]
        about = {"InstanceProfileName": "gpu", "InstanceProfileId": "AIPA" + "A" * 12, "Arn": ROLE, **dates}
        iam = scripted.stub("iam")
        asked = {"InstanceProfileName": "gpu"}
        iam.add_response("get_instance_profile", {"InstanceProfile": {**about, "Roles": roles}}, asked)
        return iam

    return with_roles


def decided(**decisions: str):
    rows = [
        {"EvalActionName": action.replace("_", ":"), "EvalDecision": decision} for action, decision in decisions.items()
    ]
    return {"EvaluationResults": rows}


@pytest.mark.parametrize(
    ("decision", "may_pass"), [("allowed", True), ("implicitDeny", False), ("explicitDeny", False)]
)
def test_simulator_tells_whether_the_role_may_be_passed(scripted, account, decision: str, may_pass: bool) -> None:
    account("gpu").add_response("simulate_principal_policy", decided(iam_PassRole=decision), PASS)
    seen = inspect_profile(scripted, "gpu", session_manager=False)
    assert seen == ProfileSeen("gpu", may_pass, f"IAM policy simulation: {decision}", ())
    scripted.done()


def test_without_the_simulator_everything_is_unknown(scripted, account) -> None:
    iam = account("gpu")
    for _ in range(2):
        iam.add_client_error("simulate_principal_policy", "AccessDenied", "not allowed")
    seen = inspect_profile(scripted, "gpu", session_manager=True)
    assert seen is not None
    assert (seen.may_pass, seen.node_lacks) == (None, None)
    assert "not allowed" in seen.why


def test_actions_that_the_role_denies_its_nodes_are_named(scripted, account) -> None:
    iam = account("gpu", caller="arn:aws:iam::111122223333:root")
    iam.add_response(
        "simulate_principal_policy",
        decided(ssm_UpdateInstanceInformation="allowed", ssmmessages_OpenDataChannel="allowed"),
    )
    seen = inspect_profile(scripted, "gpu", session_manager=True)
    assert seen is not None
    assert seen.may_pass
    assert seen.node_lacks == (
        "ssmmessages:CreateControlChannel",
        "ssmmessages:CreateDataChannel",
        "ssmmessages:OpenControlChannel",
    )


def test_profile_without_a_role(scripted, account) -> None:
    account()
    assert inspect_profile(scripted, "gpu", session_manager=True) == ProfileSeen("", None, "")


def test_profile_that_cannot_be_read_is_left_to_the_check_of_named_resources(scripted) -> None:
    scripted.stub("iam").add_client_error("get_instance_profile", "NoSuchEntity")
    assert inspect_profile(scripted, "gpu", session_manager=True) is None


ACTIONS = ("iam:CreateInstanceProfile", "iam:CreateRole")


@pytest.fixture
def caller(scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Identity("111122223333", USER, "env")
    monkeypatch.setattr(type(scripted), "identity", lambda _: identity, raising=False)


@pytest.mark.usefixtures("caller")
def test_simulator_tells_which_calls_for_new_roles_are_denied(scripted) -> None:
    stub = scripted.stub("iam")
    stub.add_response("simulate_principal_policy", decided(iam_CreateRole="allowed"))
    stub.add_response("simulate_principal_policy", decided(iam_CreateInstanceProfile="explicitDeny"))
    assert denied_role_actions(scripted, ACTIONS, "") == ("iam:CreateInstanceProfile",)


@pytest.mark.usefixtures("caller")
def test_call_for_a_new_role_is_simulated_with_its_boundary(scripted) -> None:
    asked = []
    boundary = "arn:aws:iam::111122223333:policy/cloudgpu-boundary"
    scripted.client("iam").meta.events.register(
        "provide-client-params.iam.SimulatePrincipalPolicy", lambda params, **_: asked.append(params)
    )
    scripted.stub("iam").add_response("simulate_principal_policy", decided(iam_CreateRole="allowed"))
    assert denied_role_actions(scripted, ("iam:CreateRole",), boundary) == ()
    (entries,) = [params["ContextEntries"] for params in asked]
    assert {"iam:PermissionsBoundary": [boundary]}.items() <= {
        entry["ContextKeyName"]: entry["ContextKeyValues"] for entry in entries
    }.items()


@pytest.mark.usefixtures("caller")
def test_denied_calls_for_new_roles_are_unknown_without_the_simulator(scripted) -> None:
    scripted.stub("iam").add_client_error("simulate_principal_policy", "AccessDenied")
    assert denied_role_actions(scripted, ACTIONS, "") == ()
