"""Policy documents of permission grants, and the mapping from boto3 calls to permissions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloudgpu.cloud.access import Conditions, Grant

REQUEST_HAS_TAG: Conditions = {"StringLike": {"aws:RequestTag/cloudgpu:owner": "?*"}}
"""Condition requiring the creating call to set the owner tag, which every cloudgpu resource has."""
RESOURCE_HAS_TAG: Conditions = {"StringLike": {"aws:ResourceTag/cloudgpu:owner": "?*"}}
"""Condition requiring the resource to already have the owner tag."""
EC2_ARN = "arn:aws:ec2:*:*:"


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


def _one_or_many(values: Sequence[str]) -> Any:  # noqa: ANN401 - the form of AWS policies
    return values[0] if len(values) == 1 else list(values)
