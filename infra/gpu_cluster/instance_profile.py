"""The IAM role of the nodes. It allows them to terminate the cluster's nodes and to access the recipe's data."""

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
"""Minimum actions for Session Manager according to AWS. IAM cannot restrict these actions to resources."""


@dataclass(frozen=True)
class Grants:
    """Permissions that the nodes need.

    Attributes:
        readable: S3 locations (`bucket/prefix`) that the nodes may read.
        writable: S3 locations that the nodes may also write.
        sessions: Whether a node's SSM agent may connect to Session Manager, which then forwards SSH to the node.
    """

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    sessions: bool = False


@dataclass(frozen=True)
class IdentityArgs:
    """Settings of the IAM identity. `physical_name` must be unique in the account because IAM is not regional.

    Attributes:
        role_name: Existing role for a new profile; empty for a new role.
        profile_name: Existing profile to use instead of a new one; empty for a new one.
    """

    physical_name: str
    role_name: str
    profile_name: str
    region: str
    token: str
    grants: Grants
    tags: dict[str, str]


class NodeIdentity(pulumi.ComponentResource):
    """A new instance profile with a new or an existing role, or an existing profile. Existing ones are not changed."""

    profile_name: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Identity", name, None, opts)
        self.profile_name = pulumi.Output.from_input(args.profile_name) if args.profile_name else self._new(name, args)
        self.register_outputs({"profileName": self.profile_name})

    def _new(self, name: str, args: IdentityArgs) -> pulumi.Output[str]:
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        role: pulumi.Input[str] = args.role_name
        if not args.role_name:
            new_role = aws.iam.Role(
                name,
                name=args.physical_name,
                description="cloudgpu node",
                assume_role_policy=_TRUST,
                tags=args.tags,
                opts=alone,
            )
            role = new_role.name
            opts = pulumi.ResourceOptions(parent=self, deleted_with=new_role)
            aws.iam.RolePolicy(name, name=_POLICY, role=new_role.name, policy=node_policy(args), opts=opts)
        profile = aws.iam.InstanceProfile(name, name=args.physical_name, role=role, tags=args.tags, opts=alone)
        created: pulumi.Output[str] = profile.name
        return created


def node_policy(args: IdentityArgs) -> str:
    """Return the role's policy. Only actions that IAM cannot restrict to resources are allowed on all resources."""
    partition = _partition(args.region)
    statements = [_own_nodes(args, partition)]
    for location in args.grants.readable:
        statements += _s3(location, _READ, partition)
    for location in args.grants.writable:
        statements += _s3(location, _WRITE, partition)
    if args.grants.sessions:
        statements.append({"Effect": "Allow", "Action": list(_SESSIONS), "Resource": "*"})
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, sort_keys=True)


def _own_nodes(args: IdentityArgs, partition: str) -> dict[str, Any]:
    """Return the statement that allows terminating the cluster's nodes, selected by token because names are reused."""
    return {
        "Effect": "Allow",
        "Action": ["ec2:TerminateInstances"],
        "Resource": f"arn:{partition}:ec2:{args.region}:*:instance/*",
        "Condition": {"StringEquals": {"aws:ResourceTag/cloudgpu:token": args.token}},
    }


def _s3(location: str, actions: tuple[str, ...], partition: str) -> list[dict[str, Any]]:
    bucket, _, prefix = location.partition("/")
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
