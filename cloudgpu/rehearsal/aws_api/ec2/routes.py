"""Routes, subnets and internet gateways: what AWS rejects and moto accepts, and the default route of a default VPC."""

from collections.abc import Iterator
from copy import copy
from typing import Any

from moto.core.responses import ActionResult

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule

_LOCAL = "local"
_EVERYWHERE = "0.0.0.0/0"


@rule("DeleteSubnet")
def delete_subnet(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a subnet unless it contains a network interface."""
    subnet_id = str(call.params.get("SubnetId") or "")
    if any(interface.subnet.id == subnet_id for interface in call.backend.enis.values()):
        raise AwsError("DependencyViolation", f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
    response = call.proceed()
    _forget_associations(call, subnet_id)
    return response


@rule("DetachInternetGateway")
def detach_gateway(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Detach an internet gateway unless an interface in the VPC has a public address."""
    vpc_id = str(call.params.get("VpcId") or "")
    if any(True for _ in _public_interfaces(call, vpc_id)):
        raise AwsError(
            "DependencyViolation",
            f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) before "
            "detaching the gateway.",
        )
    return call.proceed()


def _public_interfaces(call: ParsedRequest, vpc_id: str) -> Iterator[Any]:
    for interface in call.backend.enis.values():
        if interface.subnet.vpc_id == vpc_id and interface.public_ip:
            yield interface


def _forget_associations(call: ParsedRequest, subnet_id: str) -> None:
    """Remove the route table associations of a deleted subnet, which moto does not remove."""
    for table in call.backend.route_tables.values():
        for association_id in [name for name, target in table._associations.items() if target == subnet_id]:
            del table._associations[association_id]


@rule("CreateRoute")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create a route to an existing gateway."""
    _check_target(call)
    return call.proceed()


@rule("ReplaceRoute")
def replace(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change a route to another existing gateway."""
    _check_target(call)
    return call.proceed()


@rule("DescribeRouteTables")
def describe(call: ParsedRequest) -> ActionResult:
    """Describe route tables. The main table of a default VPC has a default route, which moto does not create."""
    tables = call.proceed().result["RouteTables"]
    return ActionResult({"RouteTables": [_with_default_route(call, table) for table in tables]})


def _with_default_route(call: ParsedRequest, table: Any) -> Any:  # noqa: ANN401 - moto's route table
    """Return a main table of a default VPC with a route to an internet gateway, as AWS creates it with the VPC."""
    is_default = call.backend.vpcs[table.vpc_id].is_default and table.main_association_id
    if not is_default or any(route.destination_cidr_block == _EVERYWHERE for route in table.routes):
        return table
    outward = copy(next(iter(table.routes)))
    # moto stores every target as an object, except the ID of an endpoint.
    gateway_id = f"igw-{table.vpc_id.removeprefix('vpc-')}"
    vars(outward).update(destination_cidr_block=_EVERYWHERE, local=False, vpc_endpoint_id=gateway_id)
    complete = copy(table)
    complete._routes = {**table._routes, _EVERYWHERE: outward}
    return complete


def _check_target(call: ParsedRequest) -> None:
    if not call.params.get("RouteTableId"):
        raise AwsError("MissingParameter", "The request must contain the parameter routeTableId")
    nat_id, gateway_id = call.params.get("NatGatewayId"), call.params.get("GatewayId")
    nat_gateway = call.backend.nat_gateways.get(nat_id)
    if nat_id and (nat_gateway is None or nat_gateway.state == "deleted"):
        raise AwsError("InvalidNatGatewayID.NotFound", f"The natGateway ID '{nat_id}' does not exist")
    backend = call.backend
    gateways = {*backend.internet_gateways, *backend.vpn_gateways, *backend.vpc_end_points, _LOCAL}
    if gateway_id and gateway_id not in gateways:
        raise AwsError("InvalidGatewayID.NotFound", f"The gateway ID '{gateway_id}' does not exist")
