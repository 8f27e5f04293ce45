"""IAM and STS: moto's implementation plus the checks that moto lacks."""

from collections.abc import Mapping
from typing import Any, Final

from moto.core.responses import ActionResult
from moto.iam.exceptions import (
    DeleteConflictException,
    IAMException,
    MalformedPolicyDocument,
    NoSuchEntity,
    ValidationError,
)
from moto.iam.responses import IamResponse
from moto.sts.responses import TokenResponse

from cloudgpu.files import parse_json
from cloudgpu.rehearsal.aws_api.iam_permissions import AWS_MANAGED

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
