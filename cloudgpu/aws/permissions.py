"""The least-privilege permissions for cloudgpu, from which the IAM policies and `doctor`'s checks are generated.

Calls that create EC2 resources must tag them, and only tagged resources may be changed or deleted, so the policy
cannot affect instances that cloudgpu did not create. Access to S3 objects is not limited to certain buckets,
because a dataset may be in any bucket. The permissions for IAM roles and schedules are in `iam_grants.py`.

Permissions for `reach = ssm` and for `cloudgpu storage` are in separate policies, because IAM limits the size of a
policy and not every user needs storage.
"""

from collections.abc import Mapping

from cloudgpu.aws.iam_grants import (
    EC2_ARN,
    EFS,
    FSX,
    FSX_DATA_SERVICE,
    REQUEST_HAS_TAG,
    RESOURCE_HAS_TAG,
    ec2_arns,
    service_role_arns,
)
from cloudgpu.cloud import Grant

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


SESSION_GRANTS: tuple[Grant, ...] = (
    Grant(
        "SessionsToNodes",
        "connect to nodes through Session Manager",
        ("ssm:StartSession",),
        ec2_arns("instance"),
        RESOURCE_HAS_TAG,
    ),
    Grant(
        "SessionsBySsh",
        "tunnel SSH through sessions",
        ("ssm:StartSession",),
        ("arn:aws:ssm:*::document/AWS-StartSSHSession",),
    ),
)


_CREATING = (
    "AllocateAddress",
    "CreateFleet",
    "CreateImage",
    "CreateInternetGateway",
    "CreateLaunchTemplate",
    "CreateNatGateway",
    "CreatePlacementGroup",
    "CreateRouteTable",
    "CreateSecurityGroup",
    "CreateSubnet",
    "CreateVpc",
    "CreateVpcEndpoint",
    "ImportKeyPair",
)
"""EC2 calls that create a resource and tag it in the same call."""

GRANTS: tuple[Grant, ...] = (
    Grant("WhoAmI", "identify the caller", ("sts:GetCallerIdentity",)),
    Grant(
        "Look",
        "describe EC2 resources",
        (
            "ec2:DescribeAccountAttributes",
            "ec2:DescribeAddresses",
            "ec2:DescribeAvailabilityZones",
            "ec2:DescribeCapacityReservations",
            "ec2:DescribeFleets",
            "ec2:DescribeImages",
            "ec2:DescribeInstanceTypeOfferings",
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeInstances",
            "ec2:DescribeInternetGateways",
            "ec2:DescribeKeyPairs",
            "ec2:DescribeLaunchTemplates",
            "ec2:DescribeNatGateways",
            "ec2:DescribeNetworkAcls",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribePlacementGroups",
            "ec2:DescribeRegions",
            "ec2:DescribeRouteTables",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSnapshots",
            "ec2:DescribeSpotPriceHistory",
            "ec2:DescribeSubnets",
            "ec2:DescribeVolumes",
            "ec2:DescribeVpcEndpoints",
            "ec2:DescribeVpcs",
            "ec2:GetConsoleOutput",
        ),
    ),
    Grant(
        "Quotas",
        "read quotas and prices",
        ("pricing:GetProducts", "servicequotas:ListAWSDefaultServiceQuotas", "servicequotas:ListServiceQuotas"),
    ),
    Grant("Images", "find machine images", ("ssm:GetParameter",), ("arn:aws:ssm:*::parameter/aws/service/*",)),
    Grant(
        "Registry",
        "pull containers from ECR",
        (
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetAuthorizationToken",
            "ecr:GetDownloadUrlForLayer",
        ),
    ),
    Grant(
        "Launch",
        "launch instances",
        ("ec2:CreateFleet", "ec2:RunInstances"),
        ec2_arns("fleet", "instance", "network-interface", "volume"),
        REQUEST_HAS_TAG,
    ),
    Grant(
        "LaunchWith",
        "use existing resources in launches",
        ("ec2:CreateFleet", "ec2:RunInstances"),
        (
            "arn:aws:ec2:*::image/*",
            "arn:aws:ec2:*::snapshot/*",
            *ec2_arns(
                "capacity-reservation", "key-pair", "launch-template", "placement-group", "security-group", "subnet"
            ),
        ),
    ),
    Grant(
        "Make",
        "create tagged resources",
        tuple(f"ec2:{name}" for name in _CREATING if name != "CreateFleet"),
        ec2_arns(
            "elastic-ip",
            "image",
            "internet-gateway",
            "key-pair",
            "launch-template",
            "natgateway",
            "placement-group",
            "route-table",
            "security-group",
            "snapshot",
            "subnet",
            "vpc",
            "vpc-endpoint",
        ),
        REQUEST_HAS_TAG,
    ),
    Grant(
        "MakeIn",
        "create resources in a VPC",
        (
            "ec2:CreateNatGateway",
            "ec2:CreateRouteTable",
            "ec2:CreateSecurityGroup",
            "ec2:CreateSubnet",
            "ec2:CreateVpcEndpoint",
        ),
        ec2_arns("elastic-ip", "route-table", "subnet", "vpc"),
    ),
    Grant(
        "TagMade",
        "tag new resources",
        ("ec2:CreateTags",),
        (f"{EC2_ARN}*",),
        {"StringEquals": {"ec2:CreateAction": [*_CREATING, "RunInstances"]}},
    ),
    Grant(
        "ChangeOrEnd",
        "change and delete resources",
        (
            "ec2:AssociateAddress",
            "ec2:AssociateRouteTable",
            "ec2:AttachInternetGateway",
            "ec2:AuthorizeSecurityGroupEgress",
            "ec2:AuthorizeSecurityGroupIngress",
            "ec2:CreateImage",
            "ec2:CreateLaunchTemplateVersion",
            "ec2:CreateRoute",
            "ec2:CreateTags",
            "ec2:DeleteFleets",
            "ec2:DeleteInternetGateway",
            "ec2:DeleteKeyPair",
            "ec2:DeleteLaunchTemplate",
            "ec2:DeleteNatGateway",
            "ec2:DeleteNetworkInterface",
            "ec2:DeletePlacementGroup",
            "ec2:DeleteRoute",
            "ec2:DeleteRouteTable",
            "ec2:DeleteSecurityGroup",
            "ec2:DeleteSnapshot",
            "ec2:DeleteSubnet",
            "ec2:DeleteTags",
            "ec2:DeleteVolume",
            "ec2:DeleteVpc",
            "ec2:DeleteVpcEndpoints",
            "ec2:DeregisterImage",
            "ec2:DetachInternetGateway",
            "ec2:DisassociateAddress",
            "ec2:DisassociateRouteTable",
            "ec2:ModifyLaunchTemplate",
            "ec2:ModifySubnetAttribute",
            "ec2:ModifyVpcAttribute",
            "ec2:ModifyVpcEndpoint",
            "ec2:ReleaseAddress",
            "ec2:ReplaceRoute",
            "ec2:RevokeSecurityGroupEgress",
            "ec2:RevokeSecurityGroupIngress",
            "ec2:TerminateInstances",
            "ec2:UpdateSecurityGroupRuleDescriptionsEgress",
            "ec2:UpdateSecurityGroupRuleDescriptionsIngress",
        ),
        (f"{EC2_ARN}*",),
        RESOURCE_HAS_TAG,
    ),
    Grant("ListIdentities", "search IAM", ("iam:ListInstanceProfiles", "iam:ListRoles")),
    Grant("FindBuckets", "find buckets", ("s3:ListAllMyBuckets",)),
    Grant(
        "Data",
        "read and write data in S3",
        (
            "s3:AbortMultipartUpload",
            "s3:CreateBucket",
            "s3:GetObject",
            "s3:ListBucket",
            "s3:PutObject",
        ),
        ("arn:aws:s3:::*",),
    ),
)

IMPLIED: Mapping[str, str] = {
    "ecr:BatchCheckLayerAvailability": "the nodes pull with the caller's login",
    "ecr:BatchGetImage": "the nodes pull with the caller's login",
    "ecr:GetDownloadUrlForLayer": "the nodes pull with the caller's login",
    "ec2:RunInstances": "AWS makes this call for CreateFleet, with the caller's permissions",
    "iam:PassRole": "launching with an instance profile",
    "scheduler:ListTagsForResource": "reading a schedule group's tags; other services share the operation's name",
    "scheduler:TagResource": "CreateScheduleGroup with tags",
    "scheduler:UntagResource": "changing the tags of a schedule group",
    "s3:AbortMultipartUpload": "a failed multipart upload",
    "iam:UpdateRoleDescription": "UpdateRole with a description",
}
"""Action -> reason, for required actions that cannot be derived from the names of cloudgpu's API calls."""

OPTIONAL: Mapping[str, str] = {
    "iam:SimulatePrincipalPolicy": "`doctor` simulates the caller's policies",
}
"""Action -> purpose, for optional actions, which cloudgpu uses only if they are allowed."""
