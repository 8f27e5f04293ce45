"""Permissions as values: policy documents, and the permissions that boto3 calls need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Conditions = Mapping[str, Mapping[str, Any]]

MADE: Conditions = {"StringLike": {"aws:RequestTag/cloudgpu:owner": "?*"}}
"""The call that makes it tags it: everything of ours has an owner."""
OURS: Conditions = {"StringLike": {"aws:ResourceTag/cloudgpu:owner": "?*"}}
"""It carries our tag already."""
EC2 = "arn:aws:ec2:*:*:"


@dataclass(frozen=True)
class Grant:
    """Actions on resources under one condition.

    Attributes:
        name: `Sid` in the policy.
        purpose: What the permission is for, in words such as `launch instances`.
    """

    name: str
    purpose: str
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)
    conditions: Conditions = field(default_factory=dict)

    def statement(self) -> dict[str, Any]:
        """Return the grant as a policy statement."""
        said = {
            "Sid": self.name,
            "Effect": "Allow",
            "Action": _one_or_many(sorted(self.actions)),
            "Resource": _one_or_many(self.resources),
        }
        return {**said, "Condition": self.conditions} if self.conditions else said


def policy(grants: Sequence[Grant]) -> dict[str, Any]:
    """Return the policy document. Unconditional grants on the same resources share a statement to save space."""
    alike: dict[tuple[str, ...], list[Grant]] = {}
    for place, grant in enumerate(grants):
        alike.setdefault((str(place),) if grant.conditions else grant.resources, []).append(grant)
    return {"Version": "2012-10-17", "Statement": [_joined(some).statement() for some in alike.values()]}


def _joined(grants: Sequence[Grant]) -> Grant:
    """Merge several grants under the name of the one with the most actions."""
    first = max(grants, key=lambda grant: len(grant.actions))
    return replace(first, actions=tuple(sorted({action for grant in grants for action in grant.actions})))


def ec2(*kinds: str) -> tuple[str, ...]:
    """Return the ARN patterns of these kinds of EC2 resources."""
    return tuple(f"{EC2}{kind}/*" for kind in kinds)


def actions_for(service: str, operation: str) -> tuple[str, ...]:
    """Return the permissions for a boto3 call, such as `ec2:DescribeVpcs` for `ec2` and `DescribeVpcs`."""
    found = _RENAMED.get((service, operation))
    return found or (f"{_PREFIXES.get(service, service)}:{operation}",)


def granted(grants: Sequence[Grant]) -> frozenset[str]:
    """Return every action of these grants."""
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
"""Calls of S3 whose permissions have other names."""

_RENAMED: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("s3", operation): tuple(f"s3:{name}" for name in names) for operation, names in _S3.items()
}
_PREFIXES: Mapping[str, str] = {"service-quotas": "servicequotas", "efs": "elasticfilesystem"}


def _one_or_many(values: Sequence[str]) -> Any:  # noqa: ANN401 - as AWS has it
    return values[0] if len(values) == 1 else list(values)
