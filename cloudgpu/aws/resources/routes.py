"""Handlers for route tables and their associations with subnets."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import DescribedHandler
from cloudgpu.aws.resources.network_part import NetworkPartHandler
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError

_ROUTE = {
    "cidrBlock": "DestinationCidrBlock",
    "ipv6CidrBlock": "DestinationIpv6CidrBlock",
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
}
_DESTINATIONS = ("DestinationCidrBlock", "DestinationIpv6CidrBlock")


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
        try:
            with convert_errors(f"deleting route table association {physical_id}"):
                ctx.clients.client("ec2").disassociate_route_table(AssociationId=physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise


def _associations(clients: Clients, name: str, value: str) -> list[dict[str, Any]]:
    with convert_errors("listing route table associations"):
        tables = clients.client("ec2").describe_route_tables(Filters=[{"Name": name, "Values": [value]}])
    return [association for table in tables["RouteTables"] for association in table.get("Associations") or ()]
