"""Routes: AWS rejects a route to a gateway that does not exist."""

from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule

_LOCAL = "local"


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
