"""Check an existing instance profile: whether the caller may launch nodes with it, and what it allows the nodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cloudgpu.aws.iam.permission_probe import principal_arn, simulated_permissions
from cloudgpu.aws.iam.role_permissions import NODE_SESSION_ACTIONS, ROLE_GRANTS, grants_for_boundary
from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Session
from cloudgpu.errors import CloudGpuError
from cloudgpu.plan.named_resources import ProfileSeen

_ACTION: Final = "iam:PassRole"


def inspect_profile(session: Session, name: str, *, session_manager: bool) -> ProfileSeen | None:
    """Return what is known about a profile, or None if it cannot be read. Changes nothing.

    IAM's policy simulator tells whether the caller may pass the role, and what the role allows, if the caller may use
    the simulator. Otherwise, both are unknown.
    """
    try:
        with convert_response_errors(f"reading instance profile {name}"):
            profile = session.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
            roles = [(str(role["RoleName"]), str(role["Arn"])) for role in profile["Roles"]]
    except CloudGpuError:
        return None  # the check of named resources reports the error
    if not roles:
        return ProfileSeen("", None, "")
    role, arn = roles[0]
    try:
        may_pass, why = _may_pass(session, arn)
    except CloudGpuError as err:
        may_pass, why = None, err.message
    return ProfileSeen(role, may_pass, why, _lacks(session, arn, NODE_SESSION_ACTIONS if session_manager else ()))


def denied_role_actions(session: Session, actions: Sequence[str], boundary_arn: str) -> tuple[str, ...]:
    """Return the actions that the caller's policies deny for the roles that cloudgpu makes; empty if that is unknown.

    The grants that cloudgpu documents, with the boundary of the roles if there is one, determine the resources, tags
    and other conditions of the simulated calls.
    """
    grants = [
        replace(grant, actions=tuple(action for action in grant.actions if action in actions))
        for grant in grants_for_boundary(ROLE_GRANTS, boundary_arn)
    ]
    try:
        results = simulated_permissions(session, session.identity(), [grant for grant in grants if grant.actions])
    except CloudGpuError:
        return ()
    return tuple(sorted({result.action for result in results if result.state == "failed"}))


def _may_pass(session: Session, role_arn: str) -> tuple[bool, str]:
    """Return whether the caller may pass the role to EC2."""
    caller = session.identity().arn
    if caller.endswith(":root"):
        return True, "the root user has all permissions"
    context = {
        "ContextKeyName": "iam:PassedToService",
        "ContextKeyValues": ["ec2.amazonaws.com"],
        "ContextKeyType": "string",
    }
    decisions = _simulate(
        session,
        PolicySourceArn=principal_arn(session, caller),
        ActionNames=[_ACTION],
        ResourceArns=[role_arn],
        ContextEntries=[context],
    )
    decision = decisions.get(_ACTION, "")
    return decision == "allowed", f"IAM policy simulation: {decision}"


def _lacks(session: Session, role_arn: str, actions: tuple[str, ...]) -> tuple[str, ...] | None:
    if not actions:
        return ()
    try:
        decisions = _simulate(session, PolicySourceArn=role_arn, ActionNames=list(actions))
    except CloudGpuError:
        return None
    return tuple(action for action in actions if decisions.get(action) != "allowed")


def _simulate(session: Session, **request: Any) -> dict[str, str]:  # noqa: ANN401 - boto3's arguments
    """Return the decision for each action."""
    with convert_response_errors("simulating policies"):
        answer = session.client("iam").simulate_principal_policy(**request)
        return {str(row["EvalActionName"]): str(row["EvalDecision"]) for row in answer["EvaluationResults"]}
