"""What cloudgpu may do, as small as AWS lets it be: the one list that the IAM policy and `doctor` are made from.

What is made must be tagged by the call that makes it, and what is changed or ended must carry the tag already: nobody
with this policy can touch an instance that cloudgpu has not made. Where AWS knows no condition on tags, names begin
with `cloudgpu-`.
"""

from collections.abc import Mapping

from cloudgpu.aws.grants import EC2, MADE, OURS, Grant, ec2

_ROLES, _PROFILES = "arn:aws:iam::*:role/cloudgpu-*", "arn:aws:iam::*:instance-profile/cloudgpu-*"

_MAKING = (
    "AllocateAddress",
    "CreateFleet",
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
"""EC2 calls that make something and tag it at once."""

GRANTS: tuple[Grant, ...] = (
    Grant("WhoAmI", "identify the caller", ("sts:GetCallerIdentity",)),
    Grant(
        "Look",
        "look at EC2",
        (
            "ec2:DescribeAddresses",
            "ec2:DescribeAvailabilityZones",
            "ec2:DescribeFleets",
            "ec2:DescribeImages",
            "ec2:DescribeInstanceTypeOfferings",
            "ec2:DescribeInstances",
            "ec2:DescribeInternetGateways",
            "ec2:DescribeKeyPairs",
            "ec2:DescribeLaunchTemplates",
            "ec2:DescribeNatGateways",
            "ec2:DescribeNetworkAcls",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribePlacementGroups",
            "ec2:DescribeRouteTables",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVolumes",
            "ec2:DescribeVpcEndpoints",
            "ec2:DescribeVpcs",
            "ec2:GetConsoleOutput",
        ),
    ),
    Grant("Quotas", "read quotas", ("servicequotas:ListServiceQuotas",)),
    Grant("Images", "find machine images", ("ssm:GetParameter",), ("arn:aws:ssm:*::parameter/aws/service/*",)),
    Grant(
        "Launch",
        "launch instances",
        ("ec2:CreateFleet", "ec2:RunInstances"),
        ec2("fleet", "instance", "network-interface", "volume"),
        MADE,
    ),
    Grant(
        "LaunchWith",
        "launch with what stands already",
        ("ec2:CreateFleet", "ec2:RunInstances"),
        (
            "arn:aws:ec2:*::image/*",
            "arn:aws:ec2:*::snapshot/*",
            *ec2("capacity-reservation", "key-pair", "launch-template", "placement-group", "security-group", "subnet"),
        ),
    ),
    Grant(
        "Make",
        "make networks, keys, templates",
        tuple(f"ec2:{name}" for name in _MAKING if name != "CreateFleet"),
        ec2(
            "elastic-ip",
            "internet-gateway",
            "key-pair",
            "launch-template",
            "natgateway",
            "placement-group",
            "route-table",
            "security-group",
            "subnet",
            "vpc",
            "vpc-endpoint",
        ),
        MADE,
    ),
    Grant(
        "MakeIn",
        "make parts of a VPC",
        (
            "ec2:CreateNatGateway",
            "ec2:CreateRouteTable",
            "ec2:CreateSecurityGroup",
            "ec2:CreateSubnet",
            "ec2:CreateVpcEndpoint",
        ),
        ec2("elastic-ip", "route-table", "subnet", "vpc"),
    ),
    Grant(
        "TagMade",
        "tag what it makes",
        ("ec2:CreateTags",),
        (f"{EC2}*",),
        {"StringEquals": {"ec2:CreateAction": [*_MAKING, "RunInstances"]}},
    ),
    Grant(
        "ChangeOrEnd",
        "change and end what is tagged",
        (
            "ec2:AssociateAddress",
            "ec2:AssociateRouteTable",
            "ec2:AttachInternetGateway",
            "ec2:AuthorizeSecurityGroupEgress",
            "ec2:AuthorizeSecurityGroupIngress",
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
            "ec2:DeleteSubnet",
            "ec2:DeleteTags",
            "ec2:DeleteVolume",
            "ec2:DeleteVpc",
            "ec2:DeleteVpcEndpoints",
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
        (f"{EC2}*",),
        OURS,
    ),
    Grant("ListIdentities", "search IAM", ("iam:ListInstanceProfiles", "iam:ListRoles")),
    Grant(
        "Identities",
        "give nodes an identity",
        (
            "iam:AddRoleToInstanceProfile",
            "iam:AttachRolePolicy",
            "iam:CreateInstanceProfile",
            "iam:CreateRole",
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
            "iam:PutRolePolicy",
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
    Grant(
        "PassIdentity",
        "hand nodes their identity",
        ("iam:PassRole",),
        (_ROLES,),
        {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
    ),
    Grant("FindBuckets", "find buckets", ("s3:ListAllMyBuckets",)),
    Grant(
        "Data",
        "read and write data in S3",
        ("s3:AbortMultipartUpload", "s3:CreateBucket", "s3:GetObject", "s3:ListBucket", "s3:PutObject"),
        ("arn:aws:s3:::*",),
    ),
)

IMPLIED: Mapping[str, str] = {
    "ec2:RunInstances": "AWS makes this call for CreateFleet, with the caller's permissions",
    "iam:PassRole": "launching with an instance profile",
    "s3:AbortMultipartUpload": "an upload in parts that fails",
    "iam:UpdateRoleDescription": "UpdateRole with a description",
}
"""Actions that no call of ours is named after, and why they are needed."""

OPTIONAL: Mapping[str, str] = {
    "iam:SimulatePrincipalPolicy": "`doctor` asks IAM which permissions there are, where it may",
}
"""Actions that are tried and done without."""
