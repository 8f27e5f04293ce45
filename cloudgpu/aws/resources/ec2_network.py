"""The parts of a network: VPC, subnet, internet gateway, route table, association."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.faults import is_gone, is_in_use, typed
from cloudgpu.aws.patience import awaited, retried
from cloudgpu.aws.resources.base import Context, Physical, Properties
from cloudgpu.aws.resources.described import Described, all_tags, changed_tags, existing, tag_outputs
from cloudgpu.aws.session import Clients
from cloudgpu.aws.tagging import INTENT, mapped, retag, specification
from cloudgpu.errors import CloudGpuError

_APPEAR_S = 60
_RELEASE_S = 600


class NetworkPart(Described):
    """What the parts share: AWS gives them an id and no name, so their creating call is known by its tag alone."""

    kind: ClassVar[str]
    """AWS's resource type in tag specifications."""
    plural: ClassVar[str]
    """Key of the list in AWS's descriptions."""
    id_key: ClassVar[str]

    def create(self, ctx: Context, inputs: Properties) -> Physical:
        """Make it, wait until it can be used, then set what can only be set on an existing one.

        Raises:
            CloudError: AWS refused or cannot be reached.
        """
        spec = specification(self.kind, all_tags(ctx, inputs))
        with typed(f"making {self.kind}"):
            physical_id = self._make(ctx.clients.client("ec2"), inputs, [spec])
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: Context, inputs: Properties) -> Physical | None:
        """What this very call made, completed."""
        found = self._described(ctx.clients, [{"Name": f"tag:{INTENT}", "Values": [ctx.token]}])
        return self._settled(ctx, found[self.id_key], inputs) if found else None

    def read(self, ctx: Context, physical_id: str) -> Physical | None:
        """Its present state."""
        found = self._by_id(ctx.clients, physical_id)
        return self._physical(ctx, found, {"tags": mapped(found.get("Tags"))}) if found else None

    def update(self, ctx: Context, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its tags and what else can be changed in place."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: Context, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete it, as soon as nothing stands on it any more."""

        def attempt() -> None:
            with typed(f"deleting {self.kind} {physical_id}"):
                self._unmake(ctx.clients, physical_id)

        try:
            retried(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _settled(self, ctx: Context, physical_id: str, inputs: Properties) -> Physical:
        what = f"{self.kind} {physical_id} to become available"
        found = awaited(ctx.clock, lambda: self._usable(ctx.clients, physical_id), what=what, total_s=_APPEAR_S)
        with typed(f"setting up {self.kind} {physical_id}"):
            self._set(ctx.clients.client("ec2"), found, inputs)
        found = existing(self._by_id(ctx.clients, physical_id), f"{self.kind} {physical_id}")
        return self._physical(ctx, found, inputs)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        found = self._by_id(clients, physical_id)
        return found if found and found.get("State", "available") == "available" else None

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        return self._described(clients, [{"Name": f"{self.kind}-id", "Values": [physical_id]}])

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        """By filter, never by id: a filter answers with nothing where an id answers with an error."""
        describe = getattr(clients.client("ec2"), f"describe_{self.kind.replace('-', '_')}s")
        with typed(f"looking at {self.kind}"):
            return next(iter(describe(Filters=filters)[self.plural]), None)

    def _physical(self, ctx: Context, found: dict[str, Any], inputs: Properties) -> Physical:
        physical_id, owner = found[self.id_key], found.get("OwnerId", "")
        outputs = {
            **{key: value for key, value in inputs.items() if key != "tags"},
            "arn": f"arn:aws:ec2:{ctx.clients.region}:{owner}:{self.kind}/{physical_id}",
            "ownerId": owner,
            **self._outputs(ctx.clients, found),
            **tag_outputs(inputs, mapped(found.get("Tags"))),
        }
        return Physical(physical_id, outputs)

    @abstractmethod
    def _make(self, ec2: Any, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ANN401
        """Send the creating call and return the id."""

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set what the creating call cannot."""

    @abstractmethod
    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Send the deleting call."""

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Outputs of this type alone."""
        return {}


class Vpc(NetworkPart):
    """`aws:ec2/vpc:Vpc`."""

    type: ClassVar[str] = "aws:ec2/vpc:Vpc"
    kind, plural, id_key = "vpc", "Vpcs", "VpcId"
    accepts = frozenset({"cidrBlock", "enableDnsSupport", "enableDnsHostnames", "instanceTenancy"})
    requires = frozenset({"cidrBlock"})
    defaults: ClassVar[Properties] = {
        "enableDnsSupport": True,
        "enableDnsHostnames": False,
        "instanceTenancy": "default",
    }
    replaced_by = frozenset({"cidrBlock", "instanceTenancy"})

    def _make(self, ec2: Any, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ANN401
        tenancy = inputs["instanceTenancy"]
        made = ec2.create_vpc(CidrBlock=inputs["cidrBlock"], InstanceTenancy=tenancy, TagSpecifications=tags)
        return str(made["Vpc"]["VpcId"])

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        vpc_id = found["VpcId"]
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsSupport={"Value": bool(inputs["enableDnsSupport"])})
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsHostnames={"Value": bool(inputs["enableDnsHostnames"])})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_vpc(VpcId=physical_id)

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:
        ec2, vpc_id = clients.client("ec2"), found["VpcId"]
        within = [{"Name": "vpc-id", "Values": [vpc_id]}]
        with typed(f"looking at what came with vpc {vpc_id}"):
            named_default = [*within, {"Name": "group-name", "Values": ["default"]}]
            groups = ec2.describe_security_groups(Filters=named_default)["SecurityGroups"]
            tables = ec2.describe_route_tables(Filters=[*within, {"Name": "association.main", "Values": ["true"]}])
            lists = ec2.describe_network_acls(Filters=[*within, {"Name": "default", "Values": ["true"]}])
        table = next((one["RouteTableId"] for one in tables["RouteTables"]), "")
        return {
            "cidrBlock": found["CidrBlock"],
            "dhcpOptionsId": found.get("DhcpOptionsId", ""),
            "defaultSecurityGroupId": next((one["GroupId"] for one in groups), ""),
            "defaultRouteTableId": table,
            "mainRouteTableId": table,
            "defaultNetworkAclId": next((one["NetworkAclId"] for one in lists["NetworkAcls"]), ""),
        }


class Subnet(NetworkPart):
    """`aws:ec2/subnet:Subnet`."""

    type: ClassVar[str] = "aws:ec2/subnet:Subnet"
    kind, plural, id_key = "subnet", "Subnets", "SubnetId"
    accepts = frozenset({"vpcId", "cidrBlock", "availabilityZone", "mapPublicIpOnLaunch"})
    requires = frozenset({"vpcId", "cidrBlock"})
    defaults: ClassVar[Properties] = {"mapPublicIpOnLaunch": False}
    replaced_by = frozenset({"vpcId", "cidrBlock", "availabilityZone"})

    def _make(self, ec2: Any, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ANN401
        request = {"VpcId": inputs["vpcId"], "CidrBlock": inputs["cidrBlock"], "TagSpecifications": tags}
        if inputs.get("availabilityZone"):
            request["AvailabilityZone"] = inputs["availabilityZone"]
        return str(ec2.create_subnet(**request)["Subnet"]["SubnetId"])

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        wanted = bool(inputs["mapPublicIpOnLaunch"])
        if found.get("MapPublicIpOnLaunch", False) != wanted:
            ec2.modify_subnet_attribute(SubnetId=found["SubnetId"], MapPublicIpOnLaunch={"Value": wanted})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_subnet(SubnetId=physical_id)

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "vpcId": found["VpcId"],
            "cidrBlock": found["CidrBlock"],
            "availabilityZone": found["AvailabilityZone"],
            "availabilityZoneId": found.get("AvailabilityZoneId", ""),
        }


class InternetGateway(NetworkPart):
    """`aws:ec2/internetGateway:InternetGateway`."""

    type: ClassVar[str] = "aws:ec2/internetGateway:InternetGateway"
    kind, plural, id_key = "internet-gateway", "InternetGateways", "InternetGatewayId"
    accepts = frozenset({"vpcId"})

    def _make(self, ec2: Any, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ANN401, ARG002
        made = ec2.create_internet_gateway(TagSpecifications=tags)
        return str(made["InternetGateway"]["InternetGatewayId"])

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        gateway_id, wanted = found["InternetGatewayId"], inputs.get("vpcId")
        attached = [one["VpcId"] for one in found.get("Attachments") or ()]
        for vpc_id in attached:
            if vpc_id != wanted:
                ec2.detach_internet_gateway(InternetGatewayId=gateway_id, VpcId=vpc_id)
        if wanted and wanted not in attached:
            ec2.attach_internet_gateway(InternetGatewayId=gateway_id, VpcId=wanted)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        found = self._by_id(clients, physical_id) or {}
        ec2 = clients.client("ec2")
        for one in found.get("Attachments") or ():
            ec2.detach_internet_gateway(InternetGatewayId=physical_id, VpcId=one["VpcId"])
        ec2.delete_internet_gateway(InternetGatewayId=physical_id)

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {"vpcId": next((one["VpcId"] for one in found.get("Attachments") or ()), "")}


_ROUTE = {
    "cidrBlock": "DestinationCidrBlock",
    "ipv6CidrBlock": "DestinationIpv6CidrBlock",
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
}
_DESTINATIONS = ("DestinationCidrBlock", "DestinationIpv6CidrBlock")


class RouteTable(NetworkPart):
    """`aws:ec2/routeTable:RouteTable`, with its routes inline."""

    type: ClassVar[str] = "aws:ec2/routeTable:RouteTable"
    kind, plural, id_key = "route-table", "RouteTables", "RouteTableId"
    accepts = frozenset({"vpcId", "routes"})
    requires = frozenset({"vpcId"})
    replaced_by = frozenset({"vpcId"})
    nested: ClassVar[Mapping[str, frozenset[str]]] = {"routes": frozenset(_ROUTE)}

    def _make(self, ec2: Any, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ANN401
        made = ec2.create_route_table(VpcId=inputs["vpcId"], TagSpecifications=tags)
        return str(made["RouteTable"]["RouteTableId"])

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """A program that names no routes leaves them alone; the local route is always AWS's own."""
        if inputs.get("routes") is None:
            return
        table_id = found["RouteTableId"]
        wanted = [{_ROUTE[key]: value for key, value in one.items() if value} for one in inputs["routes"]]
        present = [one for one in found.get("Routes") or () if one.get("GatewayId") != "local"]
        known = {_destination(one) for one in present}
        for route in wanted:
            call = ec2.replace_route if _destination(route) in known else ec2.create_route
            call(RouteTableId=table_id, **route)
        for key, value in sorted(known - {_destination(route) for route in wanted}):
            ec2.delete_route(RouteTableId=table_id, **{key: value})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Associations go first: they carry no tags, so a teardown by tag meets them only here."""
        ec2, found = clients.client("ec2"), self._by_id(clients, physical_id) or {}
        for one in found.get("Associations") or ():
            if not one.get("Main"):
                ec2.disassociate_route_table(AssociationId=one["RouteTableAssociationId"])
        ec2.delete_route_table(RouteTableId=physical_id)

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {"vpcId": found["VpcId"]}


def _destination(route: Mapping[str, Any]) -> tuple[str, str]:
    return next((key, str(route[key])) for key in _DESTINATIONS if route.get(key))


class RouteTableAssociation(Described):
    """`aws:ec2/routeTableAssociation:RouteTableAssociation`. It costs nothing and takes no tags."""

    type: ClassVar[str] = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    accepts = frozenset({"subnetId", "routeTableId"})
    requires = accepts
    replaced_by = accepts

    def create(self, ctx: Context, inputs: Properties) -> Physical:
        """Associate. Sending it again answers with the association that exists.

        Raises:
            CloudError: AWS refused or cannot be reached.
        """
        request = {"SubnetId": inputs["subnetId"], "RouteTableId": inputs["routeTableId"]}
        with typed(f"associating {inputs['routeTableId']} with {inputs['subnetId']}"):
            association_id = ctx.clients.client("ec2").associate_route_table(**request)["AssociationId"]
        return Physical(association_id, dict(inputs))

    def find(self, ctx: Context, inputs: Properties) -> Physical | None:
        """The association of these two."""
        for one in _associations(ctx.clients, "association.subnet-id", inputs["subnetId"]):
            if one.get("SubnetId") == inputs["subnetId"] and one.get("RouteTableId") == inputs["routeTableId"]:
                return Physical(one["RouteTableAssociationId"], dict(inputs))
        return None

    def read(self, ctx: Context, physical_id: str) -> Physical | None:
        """Its present state."""
        name = "association.route-table-association-id"
        for one in _associations(ctx.clients, name, physical_id):
            if one["RouteTableAssociationId"] == physical_id:
                return Physical(physical_id, {"subnetId": one.get("SubnetId"), "routeTableId": one["RouteTableId"]})
        return None

    def update(self, ctx: Context, physical_id: str, old: Properties, new: Properties) -> Physical:  # noqa: ARG002
        """Nothing of it can change in place."""
        return Physical(physical_id, dict(new))

    def delete(self, ctx: Context, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Take it away."""
        try:
            with typed(f"deleting route table association {physical_id}"):
                ctx.clients.client("ec2").disassociate_route_table(AssociationId=physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise


def _associations(clients: Clients, name: str, value: str) -> list[dict[str, Any]]:
    with typed("looking at route table associations"):
        tables = clients.client("ec2").describe_route_tables(Filters=[{"Name": name, "Values": [value]}])
    return [one for table in tables["RouteTables"] for one in table.get("Associations") or ()]
