"""The instance profile of the nodes, and their IAM role."""

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_cluster.node_policy import Grants, node_policy, partition_of

_POLICY = "own-cluster"


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
    permissions_boundary: str
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
                assume_role_policy=_trust(args.region),
                permissions_boundary=args.permissions_boundary or None,
                tags=args.tags,
                opts=alone,
            )
            role = new_role.name
            policy = node_policy(args.region, args.token, args.grants)
            opts = pulumi.ResourceOptions(parent=self, deleted_with=new_role)
            aws.iam.RolePolicy(name, name=_POLICY, role=new_role.name, policy=policy, opts=opts)
        profile = aws.iam.InstanceProfile(name, name=args.physical_name, role=role, tags=args.tags, opts=alone)
        created: pulumi.Output[str] = profile.name
        return created


def _trust(region: str) -> str:
    """Return the trust policy that lets only EC2 use the role."""
    # Of the services that cloudgpu uses, only EC2 has a service principal of its own in China.
    service = "ec2.amazonaws.com.cn" if partition_of(region) == "aws-cn" else "ec2.amazonaws.com"
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, sort_keys=True)
