"""The nodes' network: the default VPC, another existing VPC, or a new VPC."""

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from gpu_cluster.own_network import OwnNetwork, OwnNetworkArgs


@dataclass(frozen=True)
class NetworkArgs:
    """Settings of the network: the existing network to use or, in `own`, the network to create."""

    zone: str
    vpc_id: str
    subnet_id: str
    own: OwnNetworkArgs | None


class Network(pulumi.ComponentResource):
    """A VPC and a subnet in the cluster's zone.

    Nodes must depend on `routes` to reach the internet. Elastic IPs must depend on `gateways`.
    """

    vpc_id: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    routes: list[pulumi.Resource]
    gateways: list[pulumi.Resource]

    def __init__(self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:Network", name, None, opts)
        self.routes, self.gateways = [], []
        if args.own is not None:
            own = OwnNetwork(name, args.own, pulumi.ResourceOptions(parent=self))
            self.vpc_id, self.subnet_id = own.vpc_id, own.subnet_id
            self.routes, self.gateways = own.routes, own.gateways
        else:
            self._look_up(args)
        self.register_outputs({"vpcId": self.vpc_id, "subnetId": self.subnet_id})

    def _look_up(self, args: NetworkArgs) -> None:
        options = pulumi.InvokeOptions(parent=self)
        if args.subnet_id:
            subnet = aws.ec2.get_subnet_output(id=args.subnet_id, opts=options)
            self.subnet_id = subnet.apply(lambda details: _in_zone(details, args.zone))
            self.vpc_id = subnet.vpc_id
            return
        if args.vpc_id:
            self.vpc_id = pulumi.Output.from_input(args.vpc_id)
        else:
            self.vpc_id = aws.ec2.get_vpc_output(default=True, opts=options).id
        filters = [
            {"name": "vpc-id", "values": [self.vpc_id]},
            {"name": "availability-zone", "values": [args.zone]},
        ]
        subnets = aws.ec2.get_subnets_output(filters=filters, opts=options)
        self.subnet_id = subnets.ids.apply(lambda ids: _first(ids, args.zone))


def _first(ids: list[str], zone: str) -> str:
    """Return the lowest subnet ID, so that a second `up` does not move the cluster to another subnet."""
    if not ids:
        message = f"the VPC has no subnet in {zone}: set cloudgpu:subnetId, or cloudgpu:createVpc to true"
        raise pulumi.RunError(message)
    return min(ids)


def _in_zone(subnet: aws.ec2.GetSubnetResult, zone: str) -> str:
    if subnet.availability_zone != zone:
        message = f"cloudgpu:subnetId {subnet.id} is in {subnet.availability_zone}, not in {zone}"
        raise pulumi.RunError(message)
    return str(subnet.id)
