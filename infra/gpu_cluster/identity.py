"""What a node may do in the account: end its own cluster, reach the data that its recipe names, nothing else."""

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

_TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    },
    sort_keys=True,
)
_POLICY = "own-cluster"
_READ = ("s3:GetObject",)
_WRITE = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject")
_SESSIONS = (
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)
"""What AWS documents as the least for Session Manager. None of them takes a resource."""


@dataclass(frozen=True)
class Grants:
    """What a recipe needs: S3 places (`bucket/prefix`).

    Attributes:
        sessions: Let the SSM agent of a node call in, so that Session Manager leads to it.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    sessions: bool = False


@dataclass(frozen=True)
class IdentityArgs:
    """`physical_name` is unique in the account, since IAM names are shared by all regions."""

    physical_name: str
    role_name: str
    region: str
    token: str
    grants: Grants
    tags: dict[str, str]


class Identity(pulumi.ComponentResource):
    """An instance profile with a role of its own, or with the one that the user names, which stays as it is."""

    profile_name: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Identity", name, None, opts)
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        role: pulumi.Input[str] = args.role_name
        if not args.role_name:
            made = aws.iam.Role(
                name,
                name=args.physical_name,
                description="cloudgpu node",
                assume_role_policy=_TRUST,
                tags=args.tags,
                opts=alone,
            )
            role = made.name
            opts = pulumi.ResourceOptions(parent=self, deleted_with=made)
            aws.iam.RolePolicy(name, name=_POLICY, role=made.name, policy=node_policy(args), opts=opts)
        profile = aws.iam.InstanceProfile(name, name=args.physical_name, role=role, tags=args.tags, opts=alone)
        self.profile_name = profile.name
        self.register_outputs({"profileName": self.profile_name})


def node_policy(args: IdentityArgs) -> str:
    """The role's policy. Every action is spelled out; only what IAM cannot narrow down stands without a resource."""
    partition = _partition(args.region)
    statements = [_own_nodes(args, partition)]
    for place in args.grants.readable:
        statements += _s3(place, _READ, partition)
    for place in args.grants.writable:
        statements += _s3(place, _WRITE, partition)
    if args.grants.sessions:
        statements.append({"Effect": "Allow", "Action": list(_SESSIONS), "Resource": "*"})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def _own_nodes(args: IdentityArgs, partition: str) -> dict[str, Any]:
    """The token is this cluster's alone, also when another one of its name comes later."""
    return {
        "Effect": "Allow",
        "Action": ["ec2:TerminateInstances"],
        "Resource": f"arn:{partition}:ec2:{args.region}:*:instance/*",
        "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": args.token}},
    }


def _s3(place: str, actions: tuple[str, ...], partition: str) -> list[dict[str, Any]]:
    bucket, _, prefix = place.partition("/")
    listing: dict[str, Any] = {
        "Effect": "Allow",
        "Action": ["s3:ListBucket"],
        "Resource": f"arn:{partition}:s3:::{bucket}",
    }
    if prefix:
        listing["Condition"] = {"StringLike": {"s3:prefix": f"{prefix}*"}}
    objects = {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": f"arn:{partition}:s3:::{bucket}/{prefix}*",
    }
    return [listing, objects]


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
