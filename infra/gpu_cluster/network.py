"""The nodes' network: the default VPC, another existing VPC, or a new VPC; and Elastic IPs."""

import string
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

_VPC_CIDR = "10.84.0.0/16"
_ANYWHERE = "0.0.0.0/0"
_LETTERS = string.ascii_lowercase[:7]
"""Letters of the zones that have an address block. At present, a region has at most six zones."""
_ZONE_STEP = 32
"""Increment of the third byte per zone. Each zone has a /19: 8,187 addresses, or eight for each of 1,000 nodes."""
_LOCAL_ZONE_CIDR = "10.84.240.0/20"
"""Address block of a local zone, such as `us-west-2-lax-1a`."""
_NAT_OFFSET = 224
"""Third byte of the first zone's NAT gateway subnet. Each zone has a /24."""


@dataclass(frozen=True)
class OwnNetworkArgs:
    """Settings of the network.

    Attributes:
        nat: Whether nodes get no public address and send outgoing traffic through a NAT gateway.
        ssh_cidrs: Address ranges from which SSH reaches the node with an Elastic IP.
    """

    zone: str
    region: str
    nat: bool
    ssh_cidrs: tuple[str, ...]
    tags: dict[str, str]


class OwnNetwork(pulumi.ComponentResource):
    """A new VPC. Nodes must depend on `routes` to reach the internet. Elastic IPs must depend on `gateways`."""

    vpc_id: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    routes: list[pulumi.Resource]
    gateways: list[pulumi.Resource]

    def __init__(self, name: str, args: OwnNetworkArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:OwnNetwork", name, None, opts)
        self._name, self._args = name, args
        self._child = pulumi.ResourceOptions(parent=self)
        self._vpc = aws.ec2.Vpc(name, cidr_block=_VPC_CIDR, enable_dns_hostnames=True, tags=args.tags, opts=self._child)
        self._gateway = aws.ec2.InternetGateway(name, vpc_id=self._vpc.id, tags=args.tags, opts=self._child)
        self.gateways = [self._gateway]
        self.vpc_id = self._vpc.id
        table = self._table(name, self._ways_out())
        endpoint = self._s3_endpoint(table)
        self.subnet_id, links = self._subnets(table)
        self.routes = [*links, endpoint]
        self.register_outputs({"vpcId": self.vpc_id, "subnetId": self.subnet_id})

    def _ways_out(self) -> list[dict[str, pulumi.Input[str]]]:
        """Return the routes to the internet, either direct or through NAT.

        If a node behind NAT also has an Elastic IP, a more specific route sends its replies to SSH callers through the
        internet gateway. Replies through the NAT gateway would have a different source address.
        """
        if not self._args.nat:
            return [{"cidr_block": _ANYWHERE, "gateway_id": self._gateway.id}]
        callers = [cidr for cidr in self._args.ssh_cidrs if ":" not in cidr]
        back = [{"cidr_block": cidr, "gateway_id": self._gateway.id} for cidr in callers]
        return [{"cidr_block": _ANYWHERE, "nat_gateway_id": self._nat_gateway().id}, *back]

    def _nat_gateway(self) -> aws.ec2.NatGateway:
        """Create the NAT gateway in a public subnet of the nodes' zone, because traffic between zones is billed."""
        name, args = f"{self._name}-nat", self._args
        subnet = self._subnet(f"{name}-{args.zone}", args.zone, _nat_cidr(args.zone, args.region), public=False)
        table = self._table(name, [{"cidr_block": _ANYWHERE, "gateway_id": self._gateway.id}])
        link = self._link(f"{name}-{args.zone}", subnet, table)
        attached = pulumi.ResourceOptions(parent=self, depends_on=[self._gateway])
        address = aws.ec2.Eip(name, domain="vpc", tags=args.tags, opts=attached)
        return aws.ec2.NatGateway(
            name,
            subnet_id=subnet.id,
            allocation_id=address.id,
            tags=args.tags,
            # An address belongs to one gateway at a time, so delete the old gateway before creating it in another zone.
            opts=pulumi.ResourceOptions(parent=self, depends_on=[self._gateway, link], delete_before_replace=True),
        )

    def _s3_endpoint(self, table: aws.ec2.RouteTable) -> aws.ec2.VpcEndpoint:
        """Create a gateway endpoint for S3. The endpoint is free and avoids the NAT gateway's charge per GB."""
        suffix = ".cn" if self._args.region.startswith("cn-") else ""
        service = f"com.amazonaws.{self._args.region}.s3"
        return aws.ec2.VpcEndpoint(
            f"{self._name}-s3",
            vpc_id=self._vpc.id,
            service_name=f"cn.{service}" if suffix else service,
            vpc_endpoint_type="Gateway",
            route_table_ids=[table.id],
            tags=self._args.tags,
            opts=self._child,
        )

    def _subnets(self, table: aws.ec2.RouteTable) -> tuple[pulumi.Output[str], list[pulumi.Resource]]:
        """Create a subnet in every zone, so that a later launch can use another zone."""
        subnets: dict[str, aws.ec2.Subnet] = {}
        links: list[pulumi.Resource] = []
        for zone in sorted({*_zones(self), self._args.zone}):
            name = f"{self._name}-{zone}"
            cidr = _node_cidr(zone, self._args.region)
            subnets[zone] = self._subnet(name, zone, cidr, public=not self._args.nat)
            links.append(self._link(name, subnets[zone], table))
        return subnets[self._args.zone].id, links

    def _subnet(self, name: str, zone: str, cidr: str, *, public: bool) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            name,
            vpc_id=self._vpc.id,
            cidr_block=cidr,
            availability_zone=zone,
            map_public_ip_on_launch=public,
            tags=self._args.tags,
            opts=self._child,
        )

    def _table(self, name: str, routes: list[dict[str, pulumi.Input[str]]]) -> aws.ec2.RouteTable:
        return aws.ec2.RouteTable(name, vpc_id=self._vpc.id, routes=routes, tags=self._args.tags, opts=self._child)

    def _link(self, name: str, subnet: aws.ec2.Subnet, table: aws.ec2.RouteTable) -> aws.ec2.RouteTableAssociation:
        return aws.ec2.RouteTableAssociation(name, subnet_id=subnet.id, route_table_id=table.id, opts=self._child)


def _zones(parent: pulumi.Resource) -> list[str]:
    """Return the zones of the region, except local zones."""
    filters = [{"name": "opt-in-status", "values": ["opt-in-not-required"]}]
    zones = aws.get_availability_zones(state="available", filters=filters, opts=pulumi.InvokeOptions(parent=parent))
    return list(zones.names)


def _node_cidr(zone: str, region: str) -> str:
    index = _zone_index(zone, region)
    return _LOCAL_ZONE_CIDR if index is None else f"10.84.{index * _ZONE_STEP}.0/19"


def _nat_cidr(zone: str, region: str) -> str:
    index = _zone_index(zone, region)
    return f"10.84.{_NAT_OFFSET + (len(_LETTERS) if index is None else index)}.0/24"


def _zone_index(zone: str, region: str) -> int | None:
    """Derive a zone's index from its letter, so that the index never changes. Return None for a local zone."""
    letter = zone.removeprefix(region)
    if len(letter) != 1:
        return None
    if letter not in _LETTERS:
        message = f"zone {zone} has no free address range: set cloudgpu:subnetId"
        raise pulumi.RunError(message)
    return _LETTERS.index(letter)


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


@dataclass(frozen=True)
class PublicAddressesArgs:
    """Settings of the Elastic IPs. Each of the first `count` nodes gets one address.

    Attributes:
        separate_efa: Whether nodes have interfaces for EFA only next to the one for TCP.
        gateways: Resources that must exist before an address works: the internet gateway of a new VPC.
    """

    count: int
    gateways: Sequence[pulumi.Resource]
    tags: dict[str, str]
    separate_efa: bool = False


class PublicAddresses(pulumi.ComponentResource):
    """Elastic IPs, allocated before the nodes are launched, so that an exhausted quota is detected at no cost.

    Pass `before_nodes` to the nodes' `depends_on`.
    """

    before_nodes: list[pulumi.Resource]

    def __init__(self, name: str, args: PublicAddressesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("cloudgpu:infra:PublicAddresses", name, None, opts)
        self._name, self._args = name, args
        child = pulumi.ResourceOptions(parent=self, depends_on=list(args.gateways))
        self._addresses = [
            aws.ec2.Eip(f"{name}-{index}", domain="vpc", tags=args.tags, opts=child) for index in range(args.count)
        ]
        self.before_nodes = list(self._addresses)
        self.register_outputs({"publicIps": [address.public_ip for address in self._addresses]})

    def associate(self, instance_ids: pulumi.Output[list[str]]) -> None:
        """Associate each address with its node's first interface. EC2 requires an interface if a node has several."""
        for index, address in enumerate(self._addresses):
            aws.ec2.EipAssociation(
                f"{self._name}-{index}",
                allocation_id=address.id,
                network_interface_id=self._primary(instance_ids, index),
                opts=pulumi.ResourceOptions(parent=self),
            )

    def _primary(self, instance_ids: pulumi.Output[list[str]], index: int) -> pulumi.Output[str]:
        filters = [
            {"name": "attachment.instance-id", "values": [instance_ids.apply(lambda ids: ids[index])]},
            {"name": "attachment.device-index", "values": ["0"]},
        ]
        if self._args.separate_efa:
            # Every card has an interface with device index 0; only the first one is not for EFA alone.
            filters.append({"name": "interface-type", "values": ["interface"]})
        interface = aws.ec2.get_network_interface_output(filters=filters, opts=pulumi.InvokeOptions(parent=self))
        return pulumi.Output.from_input(interface.id)
