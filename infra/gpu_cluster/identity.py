"""What a node may do in the account: by default nothing but be somebody."""

import json
from dataclasses import dataclass

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


@dataclass(frozen=True)
class IdentityArgs:
    """`physical_name` is unique in the account, since IAM names are shared by all regions."""

    physical_name: str
    role_name: str
    tags: dict[str, str]


class Identity(pulumi.ComponentResource):
    """An instance profile with a role of its own, or with the one that the user names."""

    profile_name: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Identity", name, None, opts)
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        role: pulumi.Input[str] = args.role_name
        if not args.role_name:
            role = aws.iam.Role(
                name,
                name=args.physical_name,
                description="cloudgpu node; recipes add what they need",
                assume_role_policy=_TRUST,
                tags=args.tags,
                opts=alone,
            ).name
        profile = aws.iam.InstanceProfile(name, name=args.physical_name, role=role, tags=args.tags, opts=alone)
        self.profile_name = profile.name
        self.register_outputs({"profileName": self.profile_name})
