"""The account's service-linked roles, which exist unless the condition `absent_service_roles` says otherwise.

On AWS a service creates its role when it is first used, if the caller may call `iam:CreateServiceLinkedRole`. Here the
caller of an account without the role may not, so that the role has to be created first.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.iam import models as moto_iam

from cloudgpu.rehearsal.aws_api.json_service import JsonError
from cloudgpu.rehearsal.aws_api.rules import AwsError
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions

SPOT: Final = "spot.amazonaws.com"
EFS: Final = "elasticfilesystem.amazonaws.com"
FSX: Final = "fsx.amazonaws.com"
FSX_DATA: Final = "s3.data-source.lustre.fsx.amazonaws.com"
"""The service of the roles with which FSx reads and writes linked buckets: one role for each file system."""
_NAMES: Final[Mapping[str, str]] = {SPOT: "EC2Spot", EFS: "AmazonElasticFileSystem", FSX: "AmazonFSx"}
"""Service -> end of the role's name, after `AWSServiceRoleFor`."""
_READS = (b"Action=ListRoles", b"Action=ListRoleTags", b"Action=GetRole&")
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
def listed(behaviour: ActiveConditions, service: str, body: bytes) -> Iterator[None]:
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
