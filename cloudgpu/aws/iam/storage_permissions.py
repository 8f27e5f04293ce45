"""Additional permissions for `cloudgpu storage`, in a separate policy for those who use it."""

from collections.abc import Mapping

from cloudgpu.aws.iam.grants import MADE, OURS, Grant, ec2

_EFS = "arn:aws:elasticfilesystem:*:*:"
_FSX = "arn:aws:fsx:*:*:"
_BUCKETS, _OBJECTS = "arn:aws:s3:::cloudgpu-*", "arn:aws:s3:::cloudgpu-*/*"

STORAGE_GRANTS: tuple[Grant, ...] = (
    Grant(
        "LookAtStorage",
        "look at storage",
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
        "make file systems",
        (
            "elasticfilesystem:CreateFileSystem",
            "elasticfilesystem:TagResource",
            "fsx:CreateDataRepositoryAssociation",
            "fsx:CreateFileSystem",
            "fsx:TagResource",
        ),
        (f"{_EFS}file-system/*", f"{_FSX}file-system/*", f"{_FSX}association/*"),
        MADE,
    ),
    Grant(
        "ChangeOrEndFileSystems",
        "change and end file systems",
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
        OURS,
    ),
    Grant("MakeVolumes", "make volumes", ("ec2:CreateVolume",), ec2("volume"), MADE),
    Grant("VolumesFrom", "make volumes from snapshots", ("ec2:CreateVolume",), ("arn:aws:ec2:*::snapshot/*",)),
    Grant(
        "TagVolumes",
        "tag new volumes",
        ("ec2:CreateTags",),
        ec2("volume"),
        {"StringEquals": {"ec2:CreateAction": "CreateVolume"}},
    ),
    Grant("AttachVolumes", "attach volumes", ("ec2:AttachVolume",), (*ec2("volume"), *ec2("instance")), OURS),
    Grant("ChangeVolumes", "change volumes", ("ec2:ModifyVolume",), ec2("volume"), OURS),
    Grant(
        "Buckets",
        "make, change and end buckets",
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
    "elasticfilesystem:TagResource": "CreateFileSystem with tags, and tags that change",
    "elasticfilesystem:UntagResource": "tags that go",
    "fsx:TagResource": "CreateFileSystem with tags, and tags that change",
    "fsx:UntagResource": "tags that go",
}
"""Actions that no call of ours is named after, and why they are needed."""
