"""Handlers for the parts of a VPC: subnets, internet gateways, gateway endpoints and route tables."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    NetworkPartHandler,
    Properties,
    deleting,
    response_unless_gone,
)
from cloudgpu.aws.session.errors import convert_errors, error_from_code
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import UnsupportedError

_DELETION_S = 300
_DELETED_STATES = frozenset({"deleted", "Deleted"})
_ROUTE = {
    "cidrBlock": "DestinationCidrBlock",
    "ipv6CidrBlock": "DestinationIpv6CidrBlock",
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
}
_DESTINATIONS = ("DestinationCidrBlock", "DestinationIpv6CidrBlock")


class VpcHandler(NetworkPartHandler):
    """Handler for `aws:ec2/vpc:Vpc`."""

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

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        tenancy = inputs["instanceTenancy"]
        response = ctx.clients.client("ec2").create_vpc(
            CidrBlock=inputs["cidrBlock"], InstanceTenancy=tenancy, TagSpecifications=tags
        )
        return str(response["Vpc"]["VpcId"])

    def _set(self, ec2: Any, vpc: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        vpc_id = vpc["VpcId"]
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsSupport={"Value": bool(inputs["enableDnsSupport"])})
        ec2.modify_vpc_attribute(VpcId=vpc_id, EnableDnsHostnames={"Value": bool(inputs["enableDnsHostnames"])})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_vpc(VpcId=physical_id)

    def _outputs(self, clients: Clients, vpc: dict[str, Any]) -> Mapping[str, Any]:
        ec2, vpc_id = clients.client("ec2"), vpc["VpcId"]
        within = [{"Name": "vpc-id", "Values": [vpc_id]}]
        with convert_errors(f"reading the defaults of VPC {vpc_id}"):
            default_filters = [*within, {"Name": "group-name", "Values": ["default"]}]
            groups = ec2.describe_security_groups(Filters=default_filters)["SecurityGroups"]
            tables = ec2.describe_route_tables(Filters=[*within, {"Name": "association.main", "Values": ["true"]}])
            lists = ec2.describe_network_acls(Filters=[*within, {"Name": "default", "Values": ["true"]}])
        table = next((route_table["RouteTableId"] for route_table in tables["RouteTables"]), "")
        return {
            "cidrBlock": vpc["CidrBlock"],
            "dhcpOptionsId": vpc.get("DhcpOptionsId", ""),
            "defaultSecurityGroupId": next((group["GroupId"] for group in groups), ""),
            "defaultRouteTableId": table,
            "mainRouteTableId": table,
            "defaultNetworkAclId": next((acl["NetworkAclId"] for acl in lists["NetworkAcls"]), ""),
        }


class SubnetHandler(NetworkPartHandler):
    """Handler for `aws:ec2/subnet:Subnet`."""

    type: ClassVar[str] = "aws:ec2/subnet:Subnet"
    kind, plural, id_key = "subnet", "Subnets", "SubnetId"
    accepts = frozenset({"vpcId", "cidrBlock", "availabilityZone", "mapPublicIpOnLaunch"})
    requires = frozenset({"vpcId", "cidrBlock"})
    defaults: ClassVar[Properties] = {"mapPublicIpOnLaunch": False}
    replaced_by = frozenset({"vpcId", "cidrBlock", "availabilityZone"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        request = {"VpcId": inputs["vpcId"], "CidrBlock": inputs["cidrBlock"], "TagSpecifications": tags}
        if inputs.get("availabilityZone"):
            request["AvailabilityZone"] = inputs["availabilityZone"]
        return str(ctx.clients.client("ec2").create_subnet(**request)["Subnet"]["SubnetId"])

    def _set(self, ec2: Any, subnet: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        requested = bool(inputs["mapPublicIpOnLaunch"])
        if subnet.get("MapPublicIpOnLaunch", False) != requested:
            ec2.modify_subnet_attribute(SubnetId=subnet["SubnetId"], MapPublicIpOnLaunch={"Value": requested})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        clients.client("ec2").delete_subnet(SubnetId=physical_id)

    def _outputs(self, clients: Clients, subnet: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "vpcId": subnet["VpcId"],
            "cidrBlock": subnet["CidrBlock"],
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet.get("AvailabilityZoneId", ""),
        }


class InternetGatewayHandler(NetworkPartHandler):
    """Handler for `aws:ec2/internetGateway:InternetGateway`."""

    type: ClassVar[str] = "aws:ec2/internetGateway:InternetGateway"
    kind, plural, id_key = "internet-gateway", "InternetGateways", "InternetGatewayId"
    accepts = frozenset({"vpcId"})

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:  # noqa: ARG002
        response = ctx.clients.client("ec2").create_internet_gateway(TagSpecifications=tags)
        return str(response["InternetGateway"]["InternetGatewayId"])

    def _set(self, ec2: Any, gateway: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        gateway_id, requested = gateway["InternetGatewayId"], inputs.get("vpcId")
        attached = [attachment["VpcId"] for attachment in gateway.get("Attachments") or ()]
        for vpc_id in attached:
            if vpc_id != requested:
                ec2.detach_internet_gateway(InternetGatewayId=gateway_id, VpcId=vpc_id)
        if requested and requested not in attached:
            ec2.attach_internet_gateway(InternetGatewayId=gateway_id, VpcId=requested)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        gateway = self._by_id(clients, physical_id) or {}
        ec2 = clients.client("ec2")
        for attachment in gateway.get("Attachments") or ():
            ec2.detach_internet_gateway(InternetGatewayId=physical_id, VpcId=attachment["VpcId"])
        ec2.delete_internet_gateway(InternetGatewayId=physical_id)

    def _outputs(self, clients: Clients, gateway: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {"vpcId": next((attachment["VpcId"] for attachment in gateway.get("Attachments") or ()), "")}


class VpcEndpointHandler(NetworkPartHandler):
    """Handler for gateway endpoints, which are free. Their traffic avoids the NAT gateway's charge per GB."""

    type: ClassVar[str] = "aws:ec2/vpcEndpoint:VpcEndpoint"
    kind, plural, id_key = "vpc-endpoint", "VpcEndpoints", "VpcEndpointId"
    describe_call, id_filter = "describe_vpc_endpoints", "vpc-endpoint-id"
    accepts = frozenset({"vpcId", "serviceName", "vpcEndpointType", "routeTableIds", "policy"})
    requires = frozenset({"vpcId", "serviceName"})
    defaults: ClassVar[Properties] = {"vpcEndpointType": "Gateway"}
    replaced_by = frozenset({"vpcId", "serviceName", "vpcEndpointType"})

    def check(self, inputs: Properties) -> Properties:
        """Reject interface endpoints, which are billed per hour and need subnets and security groups."""
        checked = super().check(inputs)
        if checked["vpcEndpointType"] != "Gateway":
            message = f"{self.type}: the direct engine does not support type {checked['vpcEndpointType']}"
            raise UnsupportedError(message, code="UnsupportedProperty", hint="use Gateway, or the pulumi engine")
        return checked

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        request = {"PolicyDocument": inputs["policy"]} if inputs.get("policy") else {}
        response = ctx.clients.client("ec2").create_vpc_endpoint(
            ClientToken=ctx.token,
            VpcId=inputs["vpcId"],
            ServiceName=inputs["serviceName"],
            VpcEndpointType=inputs["vpcEndpointType"],
            RouteTableIds=list(inputs.get("routeTableIds") or ()),
            TagSpecifications=tags,
            **request,
        )
        return str(response["VpcEndpoint"]["VpcEndpointId"])

    def _set(self, ec2: Any, endpoint: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set the route tables. If the program specifies none, leave them unchanged."""
        if inputs.get("routeTableIds") is None:
            return
        requested, present = set(inputs["routeTableIds"]), set(endpoint.get("RouteTableIds") or ())
        changes = {"AddRouteTableIds": sorted(requested - present), "RemoveRouteTableIds": sorted(present - requested)}
        request = {name: ids for name, ids in changes.items() if ids}
        if request:
            ec2.modify_vpc_endpoint(VpcEndpointId=endpoint["VpcEndpointId"], **request)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the endpoint and wait until AWS has removed it and its routes."""
        super().delete(ctx, physical_id, outputs)
        what = f"VPC endpoint {physical_id} to be deleted"
        poll(ctx.clock, lambda: self._by_id(ctx.clients, physical_id) is None or None, what=what, total_s=_DELETION_S)

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Delete the endpoint. Raise an error for a failure that AWS reports in a successful response."""
        response = clients.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[physical_id])
        for failure in response.get("Unsuccessful") or ():
            error = failure.get("Error") or {}
            raise error_from_code(
                error.get("Code", ""), error.get("Message", ""), f"deleting VPC endpoint {physical_id}"
            )

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        describe = clients.client("ec2").describe_vpc_endpoints
        what = f"describing VPC endpoint {physical_id}"
        response = response_unless_gone(what, describe, VpcEndpointIds=[physical_id])
        endpoints = response[self.plural] if response is not None else ()
        return next((endpoint for endpoint in endpoints if endpoint.get("State") not in _DELETED_STATES), None)

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        endpoint = super()._described(clients, filters)
        return endpoint if endpoint and endpoint.get("State") not in _DELETED_STATES else None

    def _outputs(self, clients: Clients, endpoint: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {
            "vpcId": endpoint["VpcId"],
            "serviceName": endpoint["ServiceName"],
            "vpcEndpointType": endpoint.get("VpcEndpointType", "Gateway"),
            "routeTableIds": sorted(endpoint.get("RouteTableIds") or ()),
            "state": endpoint.get("State", ""),
        }


class RouteTableHandler(NetworkPartHandler):
    """Handler for `aws:ec2/routeTable:RouteTable`. The routes are part of the table's properties."""

    type: ClassVar[str] = "aws:ec2/routeTable:RouteTable"
    kind, plural, id_key = "route-table", "RouteTables", "RouteTableId"
    accepts = frozenset({"vpcId", "routes"})
    requires = frozenset({"vpcId"})
    replaced_by = frozenset({"vpcId"})
    nested: ClassVar[Mapping[str, frozenset[str]]] = {"routes": frozenset(_ROUTE)}

    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        response = ctx.clients.client("ec2").create_route_table(VpcId=inputs["vpcId"], TagSpecifications=tags)
        return str(response["RouteTable"]["RouteTableId"])

    def _set(self, ec2: Any, table: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Make the routes match the program. If the program specifies no routes, leave them unchanged.

        Routes that AWS manages are never changed: the local route and the routes to gateway endpoints.
        """
        if inputs.get("routes") is None:
            return
        table_id = table["RouteTableId"]
        requested = [{_ROUTE[key]: value for key, value in route.items() if value} for route in inputs["routes"]]
        managed = [
            route for route in table.get("Routes") or () if route.get("GatewayId") != "local" and _destination(route)
        ]
        present = {_destination(route): route for route in managed}
        for route in requested:
            existing = present.get(_destination(route))
            if existing is None:
                ec2.create_route(RouteTableId=table_id, **route)
            elif not route.items() <= existing.items():
                ec2.replace_route(RouteTableId=table_id, **route)
        requested_destinations = {_destination(route) for route in requested}
        for key, value in sorted(
            destination for destination in present.keys() - requested_destinations if destination is not None
        ):
            ec2.delete_route(RouteTableId=table_id, **{key: value})

    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Delete the table's associations, then the table.

        Associations have no tags, so a teardown by tag finds them only through their table.
        """
        ec2, table = clients.client("ec2"), self._by_id(clients, physical_id) or {}
        for association in table.get("Associations") or ():
            if not association.get("Main"):
                ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
        ec2.delete_route_table(RouteTableId=physical_id)

    def _outputs(self, clients: Clients, table: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        return {"vpcId": table["VpcId"]}


def _destination(route: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the destination, or None for a route to a prefix list, which a gateway endpoint manages."""
    return next(((key, str(route[key])) for key in _DESTINATIONS if route.get(key)), None)


class RouteTableAssociationHandler(DescribedHandler):
    """Handler for `aws:ec2/routeTableAssociation:RouteTableAssociation`. An association is free and has no tags."""

    type: ClassVar[str] = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    accepts = frozenset({"subnetId", "routeTableId"})
    requires = accepts
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Associate the subnet with the route table. A repeated call returns the existing association."""
        request = {"SubnetId": inputs["subnetId"], "RouteTableId": inputs["routeTableId"]}
        with convert_errors(f"associating {inputs['routeTableId']} with {inputs['subnetId']}"):
            association_id = ctx.clients.client("ec2").associate_route_table(**request)["AssociationId"]
        return ExistingResource(association_id, dict(inputs))

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the association of this subnet with this route table, or None if there is none."""
        for association in _associations(ctx.clients, "association.subnet-id", inputs["subnetId"]):
            if (
                association.get("SubnetId") == inputs["subnetId"]
                and association.get("RouteTableId") == inputs["routeTableId"]
            ):
                return ExistingResource(association["RouteTableAssociationId"], dict(inputs))
        return None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the association does not exist."""
        name = "association.route-table-association-id"
        for association in _associations(ctx.clients, name, physical_id):
            if association["RouteTableAssociationId"] == physical_id:
                return ExistingResource(
                    physical_id, {"subnetId": association.get("SubnetId"), "routeTableId": association["RouteTableId"]}
                )
        return None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Return the new inputs. Never called, because every change forces a replacement."""
        return ExistingResource(physical_id, dict(new))

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the association."""
        with deleting(f"deleting route table association {physical_id}"):
            ctx.clients.client("ec2").disassociate_route_table(AssociationId=physical_id)


def _associations(clients: Clients, name: str, value: str) -> list[dict[str, Any]]:
    with convert_errors("listing route table associations"):
        tables = clients.client("ec2").describe_route_tables(Filters=[{"Name": name, "Values": [value]}])
    return [association for table in tables["RouteTables"] for association in table.get("Associations") or ()]
