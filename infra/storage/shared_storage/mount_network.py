"""The subnets and the security group of storage that is mounted over the network."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from shared_storage.settings import StorageArgs

Ports = tuple[tuple[int, int], ...]

NFS: Ports = ((2049, 2049),)
LUSTRE: Ports = ((988, 988), (1018, 1023))


@dataclass(frozen=True)
class StorageNetwork:
    """Network of the storage: a VPC, and the ID of one subnet for each zone."""

    vpc_id: str
    subnets: dict[str, str]


def find_storage_network(args: StorageArgs, parent: pulumi.Resource) -> StorageNetwork:
    """Return the VPC and one subnet per zone.

    Look them up synchronously, because each subnet may need a mount target.
    """
    options = pulumi.InvokeOptions(parent=parent)
    vpc_id = args.vpc_id
    if not args.subnet_ids:
        vpc_id = vpc_id or aws.ec2.get_vpc(default=True, opts=options).id
        filters = [{"name": "vpc-id", "values": [vpc_id]}]
        ids = aws.ec2.get_subnets(filters=filters, opts=options).ids
    else:
        ids = list(args.subnet_ids)
    subnets = [aws.ec2.get_subnet(id=subnet_id, opts=options) for subnet_id in sorted(ids)]
    vpcs = {subnet.vpc_id for subnet in subnets}
    if len(vpcs) != 1 or (vpc_id and vpcs != {vpc_id}):
        vpc_names = ", ".join(sorted(vpcs)) or "no VPC"
        message = f"the subnets belong to {vpc_names}: set cloudgpu:subnetIds to subnets of one VPC"
        raise pulumi.RunError(message)
    # A file system has at most one mount target per zone. Choose each zone's lowest subnet ID, which does not change.
    return StorageNetwork(vpcs.pop(), {subnet.availability_zone: subnet.id for subnet in reversed(subnets)})


class StorageSecurityGroup(pulumi.ComponentResource):
    """The security group of the file servers and their clients. Every instance in the group may mount the storage.

    Lustre servers also connect to their clients, so the rules apply in both directions.
    """

    security_group_id: pulumi.Output[str]

    def __init__(
        self,
        name: str,
        args: StorageArgs,
        network: StorageNetwork,
        ports: Ports,
        tags: dict[str, str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("cloudgpu:storage:Access", name, None, opts)
        peers: list[dict[str, Any]] = [{"self": True}]
        if args.client_group_ids:
            peers.append({"security_groups": sorted(args.client_group_ids)})
        rules = [_rule(first, last, peer) for first, last in ports for peer in peers]
        group = aws.ec2.SecurityGroup(
            name,
            name=f"{args.physical_name}-mount",
            description=f"cloudgpu: members may mount storage {args.name}",
            vpc_id=network.vpc_id,
            ingress=rules,
            egress=rules,
            tags=tags,
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.security_group_id = group.id
        self.register_outputs({"securityGroupId": group.id})


def _rule(first: int, last: int, peer: dict[str, Any]) -> dict[str, Any]:
    return {"protocol": "tcp", "from_port": first, "to_port": last, "description": "members mount", **peer}
