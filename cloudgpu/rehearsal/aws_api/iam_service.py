"""IAM and STS: moto's implementation plus validation, the evaluation of policies, and service-linked roles.

On AWS a service creates its role when it is first used, if the caller may call `iam:CreateServiceLinkedRole`. Here
the caller of an account without the role may not, so that the role has to be created first.
"""

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.iam import models as moto_iam
from moto.iam.exceptions import (
    DeleteConflictException,
    IAMException,
    MalformedPolicyDocument,
    NoSuchEntity,
    ValidationError,
)
from moto.iam.models import iam_backends
from moto.iam.responses import IamResponse
from moto.sts.responses import TokenResponse

from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.dispatch import AwsError, JsonError
from cloudgpu.rehearsal.faults.api_faults import ActiveConditions

SPOT: Final = "spot.amazonaws.com"
EFS: Final = "elasticfilesystem.amazonaws.com"
FSX: Final = "fsx.amazonaws.com"
FSX_DATA: Final = "s3.data-source.lustre.fsx.amazonaws.com"
"""The service of the roles with which FSx reads and writes linked buckets: one role for each file system."""
_NAMES: Final[Mapping[str, str]] = {SPOT: "EC2Spot", EFS: "AmazonElasticFileSystem", FSX: "AmazonFSx"}
"""Service -> end of the role's name, after `AWSServiceRoleFor`."""
_READS = (b"Action=ListRoles", b"Action=ListRoleTags", b"Action=GetRole&")
AWS_MANAGED = "arn:aws:iam::aws:policy/"
"""Beginning of the ARNs of the policies that AWS manages."""
_TAG_KEYS = ("aws:ResourceTag/", "ec2:ResourceTag/")
_SERVICE_ROLES = "/aws-service-role/"
_CREATED_ROLE: Final[Mapping[str, str]] = {
    "Path": "path",
    "RoleName": "name",
    "RoleId": "id",
    "Arn": "arn",
    "CreateDate": "create_date",
    "AssumeRolePolicyDocument": "assume_role_policy_document",
    "PermissionsBoundary": "permissions_boundary",
    "Tags": "tags",
}
"""Members of a role in the response of CreateRole -> attributes of moto's role."""
_SESSION_POLICY = ("Policy", "PolicyArns.member.1.arn", "Tags.member.1.Key")
"""Parameters whose packed size AssumeRole reports, if a request has any of them."""
moto_iam.SERVICE_NAME_CONVERSION.update({service.partition(".")[0]: name for service, name in _NAMES.items()})


def require_spot_role(behaviour: ActiveConditions) -> None:
    """Reject a spot launch in an account without the role, in the words that AWS's users report."""
    if is_missing(behaviour, SPOT):
        raise AwsError(
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "The provided credentials do not have permission to create the service-linked role for EC2 Spot Instances.",
        )


def require_fsx_role(behaviour: ActiveConditions, service: str, purpose: str) -> None:
    """Reject a call of FSx whose role does not exist.

    The words are those that AWS's users report for linked buckets.
    """
    if is_missing(behaviour, service):
        raise JsonError(
            "BadRequest",
            f"Amazon FSx is unable to create Service-Linked-Role to {purpose}. Ensure the IAM role or user you are "
            "using has the required permissions. For more details, visit "
            "https://docs.aws.amazon.com/fsx/latest/LustreGuide/setting-up.html#fsx-adding-permissions-s3.",
        )


def is_missing(behaviour: ActiveConditions, service: str) -> bool:
    """Return True if the role of a service does not exist and the caller may not create it. Count the affected call."""
    missing = service in behaviour.now.absent_service_roles and service not in _created()
    if missing:
        behaviour.count_affected_call()
    return missing


@contextmanager
def visible_service_roles(behaviour: ActiveConditions, service: str, body: bytes) -> Iterator[None]:
    """Let IAM find the roles that the account has, although the simulated state does not contain them."""
    if service != "iam" or not any(action in body for action in _READS):
        yield
        return
    missing = set(_NAMES) - set(behaviour.now.absent_service_roles) - _created()
    roles = [_backend().create_service_linked_role(name, "", "") for name in sorted(missing)]
    try:
        yield
    finally:
        for role in roles:
            _backend().roles.pop(role.id, None)


def _created() -> set[str]:
    return {str(role._linked_service) for role in _backend().roles.values() if role._linked_service}


def _backend() -> Any:  # noqa: ANN401 - moto is untyped
    return moto_iam.iam_backends[DEFAULT_ACCOUNT_ID]["aws"]


def find_role(arn: str) -> Any:  # noqa: ANN401 - moto's role
    """Return the role with this ARN, or None."""
    roles = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].roles.values()
    return next((role for role in roles if role.arn == arn), None)


def trusts(role: Any, service: str, source_arn: str) -> bool:  # noqa: ANN401
    """Return True if this service may assume the role on behalf of this resource."""
    context = {"aws:SourceArn": source_arn}
    statements = list(_statements(role.assume_role_policy_document))
    return _decide(statements, lambda statement: _names_service(statement, service), context)


def allows(role: Any, action: str, arn: str, tags: Mapping[str, str]) -> bool:  # noqa: ANN401
    """Return True if an inline policy of the role allows this action on this resource, and none denies it.

    The role's permissions boundary must allow the action as well. A boundary that does not exist allows nothing; the
    policies that AWS manages are not simulated, and count as no limit.
    """
    context = {f"{prefix}{key}": value for prefix in _TAG_KEYS for key, value in tags.items()}
    limits = [[*role.policies.values()]]
    boundary = str(getattr(role, "permissions_boundary_arn", None) or "")
    if boundary and not boundary.startswith(AWS_MANAGED):
        limits.append(_default_version(boundary))
    return all(
        _decide(
            [statement for document in documents for statement in _statements(document)],
            lambda statement: _covers(statement, action, arn),
            context,
        )
        for documents in limits
    )


def _default_version(policy_arn: str) -> list[str]:
    """Return the document of a managed policy, or an empty list if there is no such policy."""
    policy = iam_backends[DEFAULT_ACCOUNT_ID]["aws"].managed_policies.get(policy_arn)
    versions = policy.versions if policy else ()
    return [version.document for version in versions if policy and version.version_id == policy.default_version_id]


def _decide(
    statements: Iterable[dict[str, Any]], applies: Callable[[dict[str, Any]], bool], context: Mapping[str, str]
) -> bool:
    """Return True if a statement allows and none denies: an explicit deny overrides every allow."""
    effects = {
        statement.get("Effect")
        for statement in statements
        if applies(statement) and _conditions_match(statement, context)
    }
    return "Allow" in effects and "Deny" not in effects


def _statements(document: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - text or mapping
    try:
        policy = parse_json(document) if isinstance(document, str) else document
    except ValueError:
        return
    statements = policy.get("Statement") if isinstance(policy, dict) else None
    for statement in statements if isinstance(statements, list) else [statements]:
        if isinstance(statement, dict):
            yield statement


def _names_service(statement: Mapping[str, Any], service: str) -> bool:
    principal = statement.get("Principal") or {}
    return service in (_as_list(principal.get("Service")) if isinstance(principal, dict) else [])


def _covers(statement: Mapping[str, Any], action: str, arn: str) -> bool:
    """Return True if a statement is about this action and resource.

    `NotAction` and `NotResource` are supported only as far as a deny with them always applies.
    """
    denies = statement.get("Effect") == "Deny"
    return all(
        _matches(statement.get(member), value) or (denies and f"Not{member}" in statement)
        for member, value in (("Action", action), ("Resource", arn))
    )


def _conditions_match(statement: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    """Return True if all conditions of a statement match.

    Of a condition with an unsupported operator, the worse is assumed: an allow does not apply, and a deny does.
    """
    conditions, unsupported = statement.get("Condition") or {}, statement.get("Effect") == "Deny"
    if not isinstance(conditions, dict) or not all(isinstance(keys, dict) for keys in conditions.values()):
        return unsupported
    return all(
        _condition_matches(_OPERATORS[name], keys, context) if name in _OPERATORS else unsupported
        for name, keys in conditions.items()
    )


def _condition_matches(
    compare: Callable[[str, str], bool], keys: Mapping[str, Any], context: Mapping[str, str]
) -> bool:
    """Return True if each key has one of its values. A key that the request lacks does not match."""
    return all(
        key in context and any(compare(context[key], expected) for expected in _as_list(values))
        for key, values in keys.items()
    )


def _is_like(text: str, pattern: str) -> bool:
    """Compare with a pattern in which only `*` and `?` are special."""
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def _matches(patterns: Any, text: str) -> bool:  # noqa: ANN401 - text or list
    return any(_is_like(text, pattern) for pattern in _as_list(patterns))


def _as_list(value: Any) -> list[str]:  # noqa: ANN401
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]


_OPERATORS: Mapping[str, Callable[[str, str], bool]] = {
    "StringEquals": operator.eq,
    "StringLike": _is_like,
    "ArnEquals": _is_like,
    "ArnLike": _is_like,
}
"""Comparison by condition operator. The two for ARNs are the same, as IAM documents."""


class UnmodifiableEntityError(IAMException):
    """The error for a change of a service-linked role."""

    code = "UnmodifiableEntity"


class StrictIam(IamResponse):
    """A handler for one IAM request."""

    def create_role(self) -> ActionResult:
        """Create a role, unless its trust policy is not JSON or its permissions boundary does not exist.

        The response has fewer members than that of GetRole.

        Source: the recording of CreateRole that `tests/rehearsal/fidelity/recorded_shapes.json` names.
        """
        self._check_trust_policy("AssumeRolePolicyDocument")
        self._check_boundary()
        role = _members(super().create_role())["Role"]
        members = {name: getattr(role, attribute) for name, attribute in _CREATED_ROLE.items()}
        return ActionResult({"Role": {name: value for name, value in members.items() if value}})

    def update_assume_role_policy(self) -> ActionResult:
        """Change a role's trust policy, unless it is not JSON."""
        self._check_trust_policy("PolicyDocument")
        return super().update_assume_role_policy()

    def put_role_permissions_boundary(self) -> ActionResult:
        """Change a role's permissions boundary, unless the policy does not exist."""
        self._check_boundary()
        return super().put_role_permissions_boundary()

    def delete_policy(self) -> ActionResult:
        """Delete a managed policy, unless it is the permissions boundary of a role."""
        arn = self._get_param("PolicyArn")
        if any(role.permissions_boundary_arn == arn for role in self.backend.roles.values()):
            message = "Cannot delete a policy attached to entities."
            raise DeleteConflictException(message)
        return super().delete_policy()

    def delete_role(self) -> ActionResult:
        """Delete a role, unless it is a service-linked role, which only AWS deletes."""
        role = self._role()
        if role.path.startswith(_SERVICE_ROLES):
            message = (
                f"Cannot perform the operation on the protected role '{role.name}' - this role is only modifiable by "
                "AWS"
            )
            raise UnmodifiableEntityError(message)
        return super().delete_role()

    def attach_role_policy(self) -> ActionResult:
        """Attach a managed policy, unless its ARN is malformed."""
        if not str(self._get_param("PolicyArn")).startswith("arn:"):
            message = "Invalid ARN:  Could not be parsed!"
            raise ValidationError(message)
        return super().attach_role_policy()

    def list_instance_profiles_for_role(self) -> ActionResult:
        """List a role's instance profiles; moto returns an empty list for a role that does not exist."""
        self._role()
        return _complete(super().list_instance_profiles_for_role())

    def list_instance_profiles(self) -> ActionResult:
        """List instance profiles."""
        return _complete(super().list_instance_profiles())

    def simulate_principal_policy(self) -> ActionResult:
        """Reject an unknown principal. The rehearsal cloud does not simulate the policies of its callers."""
        arn = str(self._get_param("PolicySourceArn"))
        principals: list[Any] = [*self.backend.roles.values(), *self.backend.users.values()]
        if all(principal.arn != arn for principal in principals):
            message = "Unable to retrieve specified IAM entity."
            raise NoSuchEntity(message)
        message = "SimulatePrincipalPolicy"
        raise NotImplementedError(message)

    def _role(self) -> Any:  # noqa: ANN401 - moto's role
        return self.backend.get_role(self._get_param("RoleName"))

    def _check_boundary(self) -> None:
        arn = str(self._get_param("PermissionsBoundary") or "")
        if arn and not arn.startswith(AWS_MANAGED) and arn not in self.backend.managed_policies:
            message = f"Scope ARN: {arn} does not exist or is not attachable."
            raise NoSuchEntity(message)

    def _check_trust_policy(self, parameter: str) -> None:
        try:
            parse_json(str(self._get_param(parameter)))
        except ValueError:
            message = "This policy contains invalid Json"
            raise MalformedPolicyDocument(message) from None


class StrictSts(TokenResponse):
    """A handler for one STS request."""

    def assume_role(self) -> ActionResult:
        """Assume a role, and report the packed size of session policies and tags only if there are any.

        Source: the AWS CLI's example of assume-role, and botocore's with a policy and tags.
        """
        members = _members(super().assume_role())
        if not any(self.querystring.get(name) for name in _SESSION_POLICY):
            del members["PackedPolicySize"]
        return ActionResult(members)


def _complete(listing: ActionResult) -> ActionResult:
    """Mark a listing as complete, as IAM does and moto does not."""
    return ActionResult({"IsTruncated": False, **_members(listing)})


def _members(response: ActionResult) -> dict[str, Any]:
    members: Any = response.result
    return dict(members)
