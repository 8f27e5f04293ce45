"""Additional permissions for `cloudgpu storage`, in a separate policy for users who need it."""

from collections.abc import Mapping

from cloudgpu.aws.iam.grants import REQUEST_HAS_TAG, RESOURCE_HAS_TAG, Grant, ec2_arns
from cloudgpu.aws.iam.service_roles import EFS, FSX, FSX_DATA_SERVICE, service_role_arns

_EFS = "arn:aws:elasticfilesystem:*:*:"
_FSX = "arn:aws:fsx:*:*:"
_BUCKETS, _OBJECTS = "arn:aws:s3:::cloudgpu-*", "arn:aws:s3:::cloudgpu-*/*"

STORAGE_GRANTS: tuple[Grant, ...] = (
    Grant(
        "LookAtStorage",
        "describe storage",
        (
            "elasticfilesystem:DescribeFileSystems",
            "elasticfilesystem:DescribeMountTargetSecurityGroups",
            "elasticfilesystem:DescribeMountTargets",
            "fsx:DescribeDataRepositoryAssociations",
            "fsx:DescribeFileSystems",
        ),
    ),
    Grant(
        "MakeFileSystems",
        "create file systems",
        (
            "elasticfilesystem:CreateFileSystem",
            "elasticfilesystem:TagResource",
            "fsx:CreateDataRepositoryAssociation",
            "fsx:CreateFileSystem",
            "fsx:TagResource",
        ),
        (f"{_EFS}file-system/*", f"{_FSX}file-system/*", f"{_FSX}association/*"),
        REQUEST_HAS_TAG,
    ),
    Grant(
        "ChangeOrEndFileSystems",
        "change and delete file systems",
        (
            "elasticfilesystem:CreateMountTarget",
            "elasticfilesystem:DeleteFileSystem",
            "elasticfilesystem:DeleteMountTarget",
            "elasticfilesystem:ModifyMountTargetSecurityGroups",
            "elasticfilesystem:TagResource",
            "elasticfilesystem:UntagResource",
            "elasticfilesystem:UpdateFileSystem",
            "fsx:CreateDataRepositoryAssociation",
            "fsx:DeleteDataRepositoryAssociation",
            "fsx:DeleteFileSystem",
            "fsx:TagResource",
            "fsx:UntagResource",
            "fsx:UpdateDataRepositoryAssociation",
            "fsx:UpdateFileSystem",
        ),
        (f"{_EFS}file-system/*", f"{_FSX}file-system/*", f"{_FSX}association/*"),
        RESOURCE_HAS_TAG,
    ),
    # AWS creates the roles for the first file system of an account, with the permissions of the caller.
    Grant(
        "MakeStorageRoles",
        "create the service-linked roles of EFS and FSx",
        ("iam:CreateServiceLinkedRole",),
        (service_role_arns(EFS.service), service_role_arns(FSX.service)),
        {"StringEquals": {"iam:AWSServiceName": [EFS.service, FSX.service]}},
    ),
    Grant(
        "LinkBuckets",
        "link Lustre file systems to buckets",
        ("iam:AttachRolePolicy", "iam:CreateServiceLinkedRole", "iam:PutRolePolicy"),
        (service_role_arns(FSX_DATA_SERVICE),),
    ),
    Grant("MakeVolumes", "create volumes", ("ec2:CreateVolume",), ec2_arns("volume"), REQUEST_HAS_TAG),
    Grant("VolumesFrom", "create volumes from snapshots", ("ec2:CreateVolume",), ("arn:aws:ec2:*::snapshot/*",)),
    Grant(
        "TagVolumes",
        "tag new volumes",
        ("ec2:CreateTags",),
        ec2_arns("volume"),
        {"StringEquals": {"ec2:CreateAction": "CreateVolume"}},
    ),
    Grant(
        "AttachVolumes",
        "attach volumes",
        ("ec2:AttachVolume",),
        (*ec2_arns("volume"), *ec2_arns("instance")),
        RESOURCE_HAS_TAG,
    ),
    Grant("ChangeVolumes", "change volumes", ("ec2:ModifyVolume",), ec2_arns("volume"), RESOURCE_HAS_TAG),
    Grant(
        "Buckets",
        "create, change and delete buckets",
        (
            "s3:DeleteBucket",
            "s3:DeleteObject",
            "s3:DeleteObjectVersion",
            "s3:GetBucketPublicAccessBlock",
            "s3:GetBucketTagging",
            "s3:GetEncryptionConfiguration",
            "s3:ListBucketMultipartUploads",
            "s3:ListBucketVersions",
            "s3:PutBucketPublicAccessBlock",
            "s3:PutBucketTagging",
            "s3:PutEncryptionConfiguration",
        ),
        (_BUCKETS, _OBJECTS),
    ),
)

STORAGE_IMPLIED: Mapping[str, str] = {
    "elasticfilesystem:TagResource": "CreateFileSystem with tags, and changed tags",
    "elasticfilesystem:UntagResource": "removed tags",
    "iam:AttachRolePolicy": "FSx gives the role for a linked bucket its policy",
    "iam:CreateServiceLinkedRole": "EC2, EFS and FSx create their roles with the caller's permissions",
    "iam:PutRolePolicy": "FSx gives the role for a linked bucket its policy",
    "fsx:TagResource": "CreateFileSystem with tags, and changed tags",
    "fsx:UntagResource": "removed tags",
}
"""Action -> reason, for required actions that cannot be derived from the names of cloudgpu's API calls."""
