"""Where the nodes stand: the default VPC, one the user names, or one of their own."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

_VPC_CIDR = "10.84.0.0/16"
_SUBNET_CIDR = "10.84.0.0/17"
"""Room for 32,000 nodes in the one zone that a gang stands in."""


@dataclass(frozen=True)
class NetworkArgs:
    """Which network to use or to make. `tags` go on everything that is made."""

    zone: str
    vpc_id: str
    subnet_id: str
    create_vpc: bool
    tags: dict[str, str]


class Network(pulumi.ComponentResource):
    """One VPC and one subnet in the zone. `routes` is what nodes need before they can reach the internet."""

    vpc_id: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    routes: list[pulumi.Resource]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Network", name, None, opts)
        self.routes = []
        if args.create_vpc:
            self._make(name, args)
        else:
            self._look_up(args)
        self.register_outputs({"vpcId": self.vpc_id, "subnetId": self.subnet_id})

    def _look_up(self, args: NetworkArgs) -> None:
        asked = pulumi.InvokeOptions(parent=self)
        if args.subnet_id:
            subnet = aws.ec2.get_subnet_output(id=args.subnet_id, opts=asked)
            self.subnet_id = subnet.apply(lambda found: _in_zone(found, args.zone))
            self.vpc_id = subnet.vpc_id
            return
        if args.vpc_id:
            self.vpc_id = pulumi.Output.from_input(args.vpc_id)
        else:
            self.vpc_id = aws.ec2.get_vpc_output(default=True, opts=asked).id
        filters = [
            {"name": "vpc-id", "values": [self.vpc_id]},
            {"name": "availability-zone", "values": [args.zone]},
        ]
        found = aws.ec2.get_subnets_output(filters=filters, opts=asked)
        self.subnet_id = found.ids.apply(lambda ids: _first(ids, args.zone))

    def _make(self, name: str, args: NetworkArgs) -> None:
        child = pulumi.ResourceOptions(parent=self)
        vpc = aws.ec2.Vpc(name, cidr_block=_VPC_CIDR, enable_dns_hostnames=True, tags=args.tags, opts=child)
        gateway = aws.ec2.InternetGateway(name, vpc_id=vpc.id, tags=args.tags, opts=child)
        subnet = aws.ec2.Subnet(
            name,
            vpc_id=vpc.id,
            cidr_block=_SUBNET_CIDR,
            availability_zone=args.zone,
            map_public_ip_on_launch=True,
            tags=args.tags,
            # One block of addresses fits one subnet: another zone's subnet can only come after this one went.
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        routes = aws.ec2.RouteTable(
            name,
            vpc_id=vpc.id,
            routes=[{"cidr_block": "0.0.0.0/0", "gateway_id": gateway.id}],
            tags=args.tags,
            opts=child,
        )
        link = aws.ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=routes.id, opts=child)
        self.vpc_id, self.subnet_id, self.routes = vpc.id, subnet.id, [link]


def _first(ids: list[str], zone: str) -> str:
    """The same one on every run, or a second `up` would move the cluster."""
    if not ids:
        message = f"the VPC has no subnet in {zone}: set cloudgpu:subnetId, or cloudgpu:createVpc to true"
        raise pulumi.RunError(message)
    return min(ids)


def _in_zone(subnet: aws.ec2.GetSubnetResult, zone: str) -> str:
    if subnet.availability_zone != zone:
        message = f"cloudgpu:subnetId {subnet.id} lies in {subnet.availability_zone}, not in {zone}"
        raise pulumi.RunError(message)
    return str(subnet.id)
