"""Data types for permissions and policies, and the permissions for the nodes' roles and the schedules.

An identity that may create roles and write their policies has every permission of the account, unless AWS requires
a boundary for the roles: a managed policy that limits what a role may do, whatever its own policies allow. An
administrator creates the boundary once. The identity can then neither create a role without it, nor add a policy to
a role that does not have it, nor change it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.cloud import Conditions, Grant
from cloudgpu.plan.named_resources import SPOT_ROLE
from cloudgpu.text import command

REQUEST_HAS_TAG: Conditions = {"StringLike": {"aws:RequestTag/cloudgpu:owner": "?*"}}
"""Condition requiring the creating call to set the owner tag, which every cloudgpu resource has."""
RESOURCE_HAS_TAG: Conditions = {"StringLike": {"aws:ResourceTag/cloudgpu:owner": "?*"}}
"""Condition requiring the resource to already have the owner tag."""
EC2_ARN = "arn:aws:ec2:*:*:"
_S3: Mapping[str, tuple[str, ...]] = {
    "CompleteMultipartUpload": ("PutObject",),
    "CreateMultipartUpload": ("PutObject",),
    "DeleteBucketEncryption": ("PutEncryptionConfiguration",),
    "DeleteObjects": ("DeleteObject", "DeleteObjectVersion"),
    "DeletePublicAccessBlock": ("PutBucketPublicAccessBlock",),
    "GetBucketEncryption": ("GetEncryptionConfiguration",),
    "GetPublicAccessBlock": ("GetBucketPublicAccessBlock",),
    "HeadBucket": ("ListBucket",),
    "HeadObject": ("GetObject",),
    "ListBuckets": ("ListAllMyBuckets",),
    "ListMultipartUploads": ("ListBucketMultipartUploads",),
    "ListObjectVersions": ("ListBucketVersions",),
    "ListObjectsV2": ("ListBucket",),
    "PutBucketEncryption": ("PutEncryptionConfiguration",),
    "PutPublicAccessBlock": ("PutBucketPublicAccessBlock",),
    "UploadPart": ("PutObject",),
}
"""S3 operation -> permissions, for operations whose permissions have different names."""
_RENAMED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("s3", operation): tuple(f"s3:{name}" for name in names) for operation, names in _S3.items()
}
_PREFIXES: Mapping[str, str] = {"service-quotas": "servicequotas", "efs": "elasticfilesystem"}
_SERVICE_ROLE_PATH: Final = "/aws-service-role/"
FSX_DATA_SERVICE: Final = "s3.data-source.lustre.fsx.amazonaws.com"
"""Service of the roles for linked buckets. FSx creates one for each file system, with the caller's permissions."""
BOUNDARY_NAME: Final = "cloudgpu-boundary"
ROLES_WITH_BOUNDARY: Final = "RolesWithBoundary"
"""Name of the grant that depends on the boundary."""
_BOUNDARY_KEY: Final = "iam:PermissionsBoundary"
_BOUNDARY_ARN: Final = f"arn:aws:iam::*:policy/{BOUNDARY_NAME}"
NODE_SESSION_ACTIONS: Final = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
"""Actions that nodes need for Session Manager."""
_OF_CLUSTER: Final = {"StringLike": {"aws:ResourceTag/cloudgpu:token": "?*"}}


def statement(grant: Grant) -> dict[str, Any]:
    """Return a grant as a policy statement."""
    document = {
        "Sid": grant.name,
        "Effect": "Allow",
        "Action": _one_or_many(sorted(grant.actions)),
        "Resource": _one_or_many(grant.resources),
    }
    return {**document, "Condition": grant.conditions} if grant.conditions else document


def policy(grants: Sequence[Grant]) -> dict[str, Any]:
    """Return the policy document. Unconditional grants on the same resources share a statement to save space."""
    groups: dict[tuple[str, ...], list[Grant]] = {}
    for index, grant in enumerate(grants):
        groups.setdefault((str(index),) if grant.conditions else grant.resources, []).append(grant)
    return {"Version": "2012-10-17", "Statement": [statement(_joined(group)) for group in groups.values()]}


def _joined(grants: Sequence[Grant]) -> Grant:
    """Merge grants, keeping the name of the grant with the most actions."""
    first = max(grants, key=lambda grant: len(grant.actions))
    return replace(first, actions=tuple(sorted({action for grant in grants for action in grant.actions})))


def ec2_arns(*kinds: str) -> tuple[str, ...]:
    """Return the ARN patterns of these EC2 resource types."""
    return tuple(f"{EC2_ARN}{kind}/*" for kind in kinds)


def actions_for(service: str, operation: str) -> tuple[str, ...]:
    """Return the permissions for a boto3 call, such as `ec2:DescribeVpcs` for `ec2` and `DescribeVpcs`."""
    renamed = _RENAMED.get((service, operation))
    return renamed or (f"{_PREFIXES.get(service, service)}:{operation}",)


def granted_actions(grants: Sequence[Grant]) -> frozenset[str]:
    """Return every action that these grants allow."""
    return frozenset(action for grant in grants for action in grant.actions)


def _one_or_many(values: Sequence[str]) -> Any:  # noqa: ANN401 - the form of AWS policies
    return values[0] if len(values) == 1 else list(values)


BOUNDARY_GRANTS: tuple[Grant, ...] = (
    Grant(
        "EndNodes",
        "terminate nodes",
        ("ec2:DeleteFleets", "ec2:TerminateInstances"),
        ("arn:aws:ec2:*:*:fleet/*", "arn:aws:ec2:*:*:instance/*"),
        _OF_CLUSTER,
    ),
    Grant(
        "Data",
        "access the data of recipes",
        ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject"),
        ("arn:aws:s3:::*",),
    ),
    Grant(
        "Sessions",
        "connect nodes to Session Manager",
        NODE_SESSION_ACTIONS,
    ),
)
"""The most that a role of cloudgpu may do: the program in `infra/` never grants more. It contains no IAM permission."""


@dataclass(frozen=True)
class ServiceRole:
    """A service-linked role.

    Attributes:
        needed_for: What fails without it, for example `spot instances`.
    """

    name: str
    service: str
    needed_for: str

    @property
    def create_command(self) -> str:
        """Command that creates the role; it needs `iam:CreateServiceLinkedRole`."""
        return command("aws", "iam", "create-service-linked-role", "--aws-service-name", self.service)


SPOT: Final = ServiceRole(SPOT_ROLE, "spot.amazonaws.com", "spot instances")
EFS: Final = ServiceRole("AWSServiceRoleForAmazonElasticFileSystem", "elasticfilesystem.amazonaws.com", "EFS storage")
FSX: Final = ServiceRole("AWSServiceRoleForAmazonFSx", "fsx.amazonaws.com", "Lustre storage")
STORAGE_ROLES: Final = (EFS, FSX)


def service_role_arns(service: str) -> str:
    """Return the ARN pattern of a service's roles."""
    return f"arn:aws:iam::*:role{_SERVICE_ROLE_PATH}{service}/*"


def service_role_names(clients: Clients) -> Sequence[str]:
    """Return the names of the account's service-linked roles."""
    with convert_response_errors("listing the service-linked roles"):
        pages = clients.client("iam").get_paginator("list_roles").paginate(PathPrefix=_SERVICE_ROLE_PATH)
        return tuple(str(role["RoleName"]) for page in pages for role in page["Roles"])


SPOT_GRANTS: tuple[Grant, ...] = (
    Grant(
        "MakeSpotRole",
        "create the service-linked role of spot",
        ("iam:CreateServiceLinkedRole",),
        (service_role_arns(SPOT.service),),
        {"StringEquals": {"iam:AWSServiceName": SPOT.service}},
    ),
)
"""Permission for the first spot launch of an account. A policy of its own, because the main one is full."""


_ROLES, _PROFILES = "arn:aws:iam::*:role/cloudgpu-*", "arn:aws:iam::*:instance-profile/cloudgpu-*"

ROLE_GRANTS: tuple[Grant, ...] = (
    Grant(
        ROLES_WITH_BOUNDARY,
        "create node roles",
        ("iam:AttachRolePolicy", "iam:CreateRole", "iam:PutRolePolicy"),
        (_ROLES,),
        {"StringLike": {_BOUNDARY_KEY: _BOUNDARY_ARN}},
    ),
    Grant(
        "Identities",
        "manage node roles",
        (
            "iam:AddRoleToInstanceProfile",
            "iam:CreateInstanceProfile",
            "iam:DeleteInstanceProfile",
            "iam:DeleteRole",
            "iam:DeleteRolePolicy",
            "iam:DetachRolePolicy",
            "iam:GetInstanceProfile",
            "iam:GetRole",
            "iam:GetRolePolicy",
            "iam:ListAttachedRolePolicies",
            "iam:ListInstanceProfilesForRole",
            "iam:ListRolePolicies",
            "iam:ListRoleTags",
            "iam:RemoveRoleFromInstanceProfile",
            "iam:TagInstanceProfile",
            "iam:TagRole",
            "iam:UntagInstanceProfile",
            "iam:UntagRole",
            "iam:UpdateAssumeRolePolicy",
            "iam:UpdateRole",
            "iam:UpdateRoleDescription",
        ),
        (_ROLES, _PROFILES),
    ),
    Grant("ReadBoundary", "find the boundary of roles", ("iam:GetPolicy",), (_BOUNDARY_ARN,)),
    Grant(
        "PassIdentity",
        "pass roles to nodes",
        ("iam:PassRole",),
        (_ROLES,),
        {"StringEquals": {"iam:PassedToService": ["ec2.amazonaws.com", "scheduler.amazonaws.com"]}},
    ),
    Grant("ListSchedules", "search schedules", ("scheduler:ListScheduleGroups",)),
    Grant(
        "Schedules",
        "schedule node termination",
        (
            "scheduler:CreateSchedule",
            "scheduler:CreateScheduleGroup",
            "scheduler:DeleteSchedule",
            "scheduler:DeleteScheduleGroup",
            "scheduler:GetSchedule",
            "scheduler:GetScheduleGroup",
            "scheduler:ListTagsForResource",
            "scheduler:TagResource",
            "scheduler:UntagResource",
            "scheduler:UpdateSchedule",
        ),
        ("arn:aws:scheduler:*:*:schedule-group/cloudgpu-*", "arn:aws:scheduler:*:*:schedule/cloudgpu-*"),
    ),
)
"""Permissions for roles, in a policy of its own: the main one is full, and users with their own role need fewer."""


def grants_for_boundary(grants: Sequence[Grant], boundary_arn: str) -> tuple[Grant, ...]:
    """Return the grants with this boundary in their conditions; empty if this user's roles have no boundary.

    `doctor` then tests the calls as the cluster program makes them.
    """
    return tuple(
        replace(grant, conditions={"StringLike": {_BOUNDARY_KEY: boundary_arn}} if boundary_arn else {})
        if _BOUNDARY_KEY in grant.conditions.get("StringLike", {})
        else grant
        for grant in grants
    )
