"""VPC endpoints: gateway endpoints manage routes in their route tables, and a VPC with endpoints cannot be deleted."""

from typing import Any

from moto.ec2.exceptions import EC2ClientError

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule
from cloudgpu.rehearsal.server.error_responses import not_found_message

_SERVICES = {"Gateway": ("s3", "dynamodb"), "Interface": ("ec2messages", "ssm", "ssmmessages")}
_NOT_FOUND = "InvalidVpcEndpointId.NotFound"


@rule("CreateVpcEndpoint")
def create(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create an endpoint; reject a service that is not available in the region."""
    endpoint_type = call.params.get("VpcEndpointType") or "Gateway"
    service = str(call.params.get("ServiceName") or "")
    if endpoint_type not in _SERVICES:
        raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate {endpoint_type} endpoints.")
    if service not in (f"com.amazonaws.{call.region}.{name}" for name in _SERVICES[endpoint_type]):
        raise AwsError("InvalidServiceName", f"The Vpc Endpoint Service '{service}' does not exist")
    before = set(call.backend.vpc_end_points)
    response = call.proceed()
    for name in set(call.backend.vpc_end_points) - before:
        # moto stores the type exactly as requested and does not apply AWS's default.
        call.backend.vpc_end_points[name].vpc_endpoint_type = endpoint_type
    return response


@rule("DescribeVpcEndpoints")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe endpoints by id and filter, excluding deleted endpoints."""
    existing = {name: endpoint for name, endpoint in call.backend.vpc_end_points.items() if endpoint.state != "deleted"}
    ids = call.texts("VpcEndpointIds")
    for missing in (endpoint_id for endpoint_id in ids if endpoint_id not in existing):
        raise AwsError(_NOT_FOUND, not_found_message(_NOT_FOUND, [missing]))
    endpoints = [endpoint for name, endpoint in existing.items() if not ids or name in ids]
    for name, values in call.filters().items():
        endpoints = [endpoint for endpoint in endpoints if _value(call, endpoint, name) & set(values)]
    return {"VpcEndpoints": endpoints}


@rule("ModifyVpcEndpoint")
def modify(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an endpoint and update its routes in the route tables. moto changes the endpoint but not the routes."""
    endpoint_id = str(call.params.get("VpcEndpointId") or "")
    endpoint = call.backend.vpc_end_points.get(endpoint_id)
    if endpoint is None or endpoint.state == "deleted":
        raise AwsError(_NOT_FOUND, not_found_message(_NOT_FOUND, [endpoint_id]))
    before = set(endpoint.route_table_ids)
    response = call.proceed()
    after = set(endpoint.route_table_ids)
    for table_id in sorted(after - before):
        prefix_list_id = endpoint.destination_prefix_list_id
        call.backend.create_route(table_id, None, gateway_id=endpoint_id, destination_prefix_list_id=prefix_list_id)
    for table_id in sorted(before - after):
        _drop_route(call, endpoint, table_id)
    return response


@rule("DeleteVpcEndpoints")
def delete(call: ParsedRequest) -> dict[str, Any]:
    """Delete each endpoint independently; the response lists the endpoints that could not be deleted."""
    failed: list[dict[str, Any]] = []
    for endpoint_id in call.texts("VpcEndpointIds"):
        endpoint = call.backend.vpc_end_points.get(endpoint_id)
        if endpoint is None or endpoint.state == "deleted":
            error = {"Code": "InvalidVpcEndpoint.NotFound", "Message": not_found_message(_NOT_FOUND, [endpoint_id])}
            failed.append({"ResourceId": endpoint_id, "Error": error})
            continue
        for table_id in endpoint.route_table_ids:
            _drop_route(call, endpoint, table_id)
        for interface_id in endpoint.network_interface_ids:
            call.backend.enis.pop(interface_id, None)
        del call.backend.vpc_end_points[endpoint_id]
        call.backend.tags.pop(endpoint_id, None)
    return {"Unsuccessful": failed}


@rule("DeleteVpc")
def delete_vpc(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a VPC unless it has an endpoint, an attached internet gateway, or a dependency that moto checks."""
    vpc_id = str(call.params.get("VpcId") or "")
    endpoints = [
        endpoint
        for endpoint in call.backend.vpc_end_points.values()
        if endpoint.vpc_id == vpc_id and endpoint.state != "deleted"
    ]
    gateways = [
        gateway
        for gateway in call.backend.internet_gateways.values()
        if gateway.vpc is not None and gateway.vpc.id == vpc_id
    ]
    if endpoints or gateways:
        raise AwsError("DependencyViolation", f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")
    return call.proceed()


def _drop_route(call: ParsedRequest, endpoint: Any, table_id: str) -> None:  # noqa: ANN401 - moto's endpoint
    """Delete the endpoint's route, if the route and its table still exist."""
    try:
        call.backend.delete_route(table_id, None, None, endpoint.destination_prefix_list_id)
    except EC2ClientError as err:
        if not err.code.endswith("NotFound"):
            raise


def _value(call: ParsedRequest, endpoint: Any, name: str) -> set[str]:  # noqa: ANN401 - moto's endpoint
    tags = call.backend.tags.get(endpoint.id, {})
    if name.startswith("tag:"):
        return {str(tags[name[4:]])} if name[4:] in tags else set()
    known = {
        "tag-key": set(tags),
        "vpc-endpoint-id": {endpoint.id},
        "vpc-id": {endpoint.vpc_id},
        "service-name": {endpoint.service_name},
        "vpc-endpoint-type": {endpoint.vpc_endpoint_type},
        "vpc-endpoint-state": {endpoint.state},
    }
    if name not in known:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return known[name]
