"""Determine the caller's permissions by IAM policy simulation or, if the simulation fails, by dry runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from botocore import xform_name

from cloudgpu.aws.iam.dry_runs import EC2_ARGUMENTS, HARMLESS_CALLS, IMAGE_PARAMETER, WITHOUT_DRY_RUN
from cloudgpu.aws.iam.grants import Grant
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients, Identity
from cloudgpu.errors import AuthError, CloudGpuError
from cloudgpu.workers import Workers

_AT_ONCE = 8
_WOULD_SUCCEED = "DryRunOperation"

State = Literal["ok", "failed", "unknown"]
_WORST: Mapping[State, int] = {"failed": 2, "unknown": 1, "ok": 0}


@dataclass(frozen=True)
class PermissionResult:
    """Result for one action. `why` explains how the state was determined, or why the state is unknown."""

    action: str
    state: State
    why: str


def probe_permissions(clients: Clients, identity: Identity, grants: Sequence[Grant]) -> tuple[PermissionResult, ...]:
    """Probe every action and return one result per action, sorted by action. Does not change any resource."""
    if identity.arn.endswith(":root"):
        return tuple(PermissionResult(action, "ok", "the root user has all permissions") for action in _actions(grants))
    try:
        results = _simulated(clients, principal_arn(clients, identity.arn), grants)
    except CloudGpuError:
        results = _tested(clients, grants)
    return tuple(_worst(action, results) for action in _actions(grants))


def simulated_permissions(clients: Clients, identity: Identity, grants: Sequence[Grant]) -> Sequence[PermissionResult]:
    """Return the results of IAM's policy simulator for every action of the grants. Does not change any resource."""
    if identity.arn.endswith(":root"):
        return [PermissionResult(action, "ok", "the root user has all permissions") for action in _actions(grants)]
    return _simulated(clients, principal_arn(clients, identity.arn), grants)


def _actions(grants: Iterable[Grant]) -> list[str]:
    return sorted({action for grant in grants for action in grant.actions})


def _worst(action: str, results: Sequence[PermissionResult]) -> PermissionResult:
    """Return the worst of an action's results because an action with several grants needs all of them."""
    matching = [result for result in results if result.action == action]
    return max(matching, key=lambda result: _WORST[result.state])


def _simulated(clients: Clients, principal: str, grants: Sequence[Grant]) -> list[PermissionResult]:
    """Run IAM's policy simulator for every grant, with a sample resource and the tags that the grant requires."""
    with convert_errors("simulating the caller's permissions"):
        return [result for grant in grants for result in _simulation(clients.client("iam"), principal, grant)]


def _simulation(iam: Any, principal: str, grant: Grant) -> Iterator[PermissionResult]:  # noqa: ANN401
    pages = iam.get_paginator("simulate_principal_policy").paginate(
        PolicySourceArn=principal,
        ActionNames=list(grant.actions),
        ResourceArns=[_sample(grant.resources[0])],
        ContextEntries=list(_context(grant)),
    )
    for page in pages:
        for row in page["EvaluationResults"]:
            allowed = row["EvalDecision"] == "allowed"
            why = "IAM policy simulation" if allowed else f"IAM policy simulation: {row['EvalDecision']}"
            yield PermissionResult(row["EvalActionName"], "ok" if allowed else "failed", why)


def _sample(resource: str) -> str:
    return resource if resource == "*" else resource.replace("*", "doctor")


def _context(grant: Grant) -> Iterator[dict[str, Any]]:
    for operator in grant.conditions.values():
        for key, value in operator.items():
            text = value if isinstance(value, str) else value[0]
            yield {
                "ContextKeyName": key,
                "ContextKeyValues": [text.replace("?*", "doctor")],
                "ContextKeyType": "string",
            }


def principal_arn(clients: Clients, arn: str) -> str:
    """Return the ARN of the principal whose policies apply.

    For a role session, the principal is the role, which is looked up because the session's ARN omits the role's path.
    """
    if ":assumed-role/" not in arn:
        return arn
    name = arn.split("/")[1]
    with convert_errors(f"reading role {name}"):
        return str(clients.client("iam").get_role(RoleName=name)["Role"]["Arn"])


def _tested(clients: Clients, grants: Sequence[Grant]) -> list[PermissionResult]:
    """Test grants with EC2 dry runs and read-only calls to other services. Actions without a test are `unknown`."""
    pairs = [(grant, action) for grant in grants for action in grant.actions]
    arguments = {**EC2_ARGUMENTS, "RunInstances": {**EC2_ARGUMENTS["RunInstances"], **_image(clients)}}
    with Workers(_AT_ONCE) as workers:
        return list(workers.map(lambda action: _test(clients, action[0], action[1], arguments), pairs))


def _image(clients: Clients) -> dict[str, str]:
    try:
        with convert_errors("reading the ID of an image"):
            parameter = clients.client("ssm").get_parameter(Name=IMAGE_PARAMETER)
    except CloudGpuError:
        return {}
    return {"ImageId": str(parameter["Parameter"]["Value"])}


def _test(clients: Clients, grant: Grant, action: str, arguments: Mapping[str, Mapping[str, Any]]) -> PermissionResult:
    service, _, operation = action.partition(":")
    if service == "ec2" and operation not in WITHOUT_DRY_RUN:
        return _dry_run(clients, grant, operation, arguments.get(operation, {}))
    if action not in HARMLESS_CALLS:
        return PermissionResult(
            action, "unknown", "cannot be tested without side effects, and the caller's policies could not be simulated"
        )
    client, method, arguments = HARMLESS_CALLS[action]
    try:
        with convert_errors(f"testing {action}"):
            getattr(clients.client(client), method)(**arguments)
    except AuthError as err:
        return PermissionResult(action, "failed", err.code or err.message)
    except CloudGpuError as err:
        return PermissionResult(action, "unknown", err.message)
    return PermissionResult(action, "ok", "test call")


def _dry_run(clients: Clients, grant: Grant, operation: str, arguments: Mapping[str, Any]) -> PermissionResult:
    action = f"ec2:{operation}"
    try:
        with convert_errors(f"dry run of {action}"):
            getattr(clients.client("ec2"), xform_name(operation))(DryRun=True, **arguments)
    except CloudGpuError as err:
        return _classified(action, getattr(err, "code", ""), err, grant)
    return PermissionResult(action, "unknown", "EC2 did not treat the call as a dry run")


def _classified(action: str, code: str, err: CloudGpuError, grant: Grant) -> PermissionResult:
    if code == _WOULD_SUCCEED:
        return PermissionResult(action, "ok", "dry run")
    # The dry run's resource does not exist and so has no tags. Even a correct policy denies a call that requires a tag.
    requires_tag = any("aws:ResourceTag" in key for operator in grant.conditions.values() for key in operator)
    if code == "UnauthorizedOperation" and not requires_tag:
        return PermissionResult(action, "failed", "dry run: UnauthorizedOperation")
    return PermissionResult(action, "unknown", f"the dry run failed with {code or err.message}")
