"""SSH access: the key pair and the security group."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

_EVERYWHERE = {"cidr_blocks": ["0.0.0.0/0"], "ipv6_cidr_blocks": ["::/0"]}


@dataclass(frozen=True)
class AccessArgs:
    """SSH access settings. If `key_name` or `security_group_id` is empty, a key pair or security group is created."""

    physical_name: str
    vpc_id: pulumi.Input[str]
    public_key: str
    ssh_cidrs: tuple[str, ...]
    key_name: str
    security_group_id: str
    tags: dict[str, str]


class Access(pulumi.ComponentResource):
    """A key pair, and a security group for SSH from the given ranges, traffic among nodes, and outbound traffic."""

    key_name: pulumi.Output[str]
    security_group_id: pulumi.Output[str]

    def __init__(self, name: str, args: AccessArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Access", name, None, opts)
        # Both resources have fixed names, so Pulumi must delete the old resource before it creates the new one.
        alone = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        if args.key_name:
            self.key_name = pulumi.Output.from_input(args.key_name)
        else:
            key = aws.ec2.KeyPair(
                name, key_name=args.physical_name, public_key=args.public_key, tags=args.tags, opts=alone
            )
            self.key_name = key.key_name
        if args.security_group_id:
            self.security_group_id = pulumi.Output.from_input(args.security_group_id)
        else:
            group = aws.ec2.SecurityGroup(
                name,
                name=args.physical_name,
                description="cloudgpu: SSH from the caller, everything among the nodes",
                vpc_id=args.vpc_id,
                ingress=[*(_ssh_from(cidr) for cidr in args.ssh_cidrs), _among_nodes()],
                egress=[_outwards(), _among_nodes()],
                tags=args.tags,
                opts=alone,
            )
            self.security_group_id = group.id
        self.register_outputs({"keyName": self.key_name, "securityGroupId": self.security_group_id})


def _ssh_from(cidr: str) -> dict[str, Any]:
    ranges = "ipv6_cidr_blocks" if ":" in cidr else "cidr_blocks"
    return {"protocol": "tcp", "from_port": 22, "to_port": 22, ranges: [cidr], "description": "SSH from the caller"}


def _among_nodes() -> dict[str, Any]:
    """Return the rule for traffic among nodes. Its peer is the group itself, because EFA traffic bypasses IP."""
    return {"protocol": "-1", "from_port": 0, "to_port": 0, "self": True, "description": "among the nodes"}


def _outwards() -> dict[str, Any]:
    return {"protocol": "-1", "from_port": 0, "to_port": 0, "description": "packages and images", **_EVERYWHERE}
