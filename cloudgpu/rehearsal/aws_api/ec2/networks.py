"""Networks: checks of routes, subnets, gateways, VPC endpoints and security groups that moto lacks."""

import copy
from collections.abc import Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidPermissionNotFoundError
from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules
from cloudgpu.rehearsal.server.error_responses import not_found_message

RULES = Rules()

NetworkInterface.group_set = property(lambda interface: interface._group_set)  # type: ignore[assignment, method-assign]
_ALL = "-1"
_LOCAL = "local"
_EVERYWHERE = "0.0.0.0/0"
_ENDPOINT_SERVICES = {"Gateway": ("s3", "dynamodb"), "Interface": ("ec2messages", "ssm", "ssmmessages")}
_ENDPOINT_NOT_FOUND = "InvalidVpcEndpointId.NotFound"


@RULES.action("ModifyNetworkInterfaceAttribute")
def modify_interface(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an interface. The groups of a primary interface become the instance's."""
    response = call.proceed()
    interface = call.backend.enis[str(call.params["NetworkInterfaceId"])]
    instance = interface.instance
    if instance is not None and instance.nics.get(0) is interface:
        instance.security_groups = list(interface.group_set)
    return response


@RULES.action("ModifyInstanceAttribute")
def modify_instance(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an instance. Its groups become those of its primary interface."""
    response = call.proceed()
    instance = call.backend.get_instance(str(call.params["InstanceId"]))
    if call.params.get("Groups") and 0 in instance.nics:
        instance.nics[0]._group_set = list(instance.security_groups)
    return response


@RULES.action("DeleteSecurityGroup")
def delete_security_group(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a security group, unless an interface or a rule of another group refers to the group."""
    group = _requested_group(call)
    if group is not None and any(True for _ in _uses(call, str(group.id))):
        raise AwsError("DependencyViolation", f"resource {group.id} has a dependent object")
    return call.proceed()


@RULES.action("AuthorizeSecurityGroupIngress")
def authorize_ingress(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Add ingress rules, or none if the group already has one of them."""
    return _authorize(call, "ingress_rules")


@RULES.action("AuthorizeSecurityGroupEgress")
def authorize_egress(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Add egress rules, or none if the group already has one of them."""
    return _authorize(call, "egress_rules")


@RULES.action("RevokeSecurityGroupEgress")
def revoke_egress(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Remove egress rules, or none if one of them does not exist; moto ignores IPv6 ranges in VPCs without IPv6."""
    group, revoked = _requested_group(call), set(_requested_ipv6(call))
    if group is None or not revoked:
        return call.proceed()
    if not revoked <= {_described(row) for row in group.egress_rules}:
        raise InvalidPermissionNotFoundError
    response = call.proceed()
    group.egress_rules = [row for row in group.egress_rules if _described(row) not in revoked]
    return response


def _authorize(call: ParsedRequest, attribute: str) -> Any:  # noqa: ANN401 - moto's response
    group = _requested_group(call)
    existing = {_described(row) for row in getattr(group, attribute)} if group is not None else set()
    for requested in _requested(call):
        if requested in existing:
            raise AwsError("InvalidPermission.Duplicate", f'the specified rule "{requested}" already exists')
    response = call.proceed()
    rules = response.result["SecurityGroupRules"]
    response.result["SecurityGroupRules"] = [_with_ports(row) for row in rules]
    return response


def _with_ports(row: Any) -> Any:  # noqa: ANN401 - moto's rule
    """Return a rule with EC2's -1 as the ports of a rule for all protocols."""
    if row.from_port is not None:
        return row
    shown = copy.copy(row)
    shown.from_port = shown.to_port = int(_ALL)
    return shown


def _requested_group(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's group
    name_or_id = str(call.params.get("GroupId") or call.params.get("GroupName") or "")
    return call.backend.get_security_group_by_name_or_id(name_or_id)


def _requested_ipv6(call: ParsedRequest) -> Iterator[str]:
    for row in call.params.get("IpPermissions") or []:
        for item in row.get("Ipv6Ranges") or []:
            protocol = str(row.get("IpProtocol") or _ALL)
            yield _description(str(item.get("CidrIpv6")), protocol, row.get("FromPort"), row.get("ToPort"))


def _requested(call: ParsedRequest) -> Iterator[str]:
    """Yield a description of each rule in the request, with the words of AWS's message about duplicates."""
    for row in call.params.get("IpPermissions") or [call.params]:
        protocol, ports = str(row.get("IpProtocol") or _ALL), (row.get("FromPort"), row.get("ToPort"))
        peers = [item.get("CidrIp") for item in row.get("IpRanges") or []] + [row.get("CidrIp")]
        peers += [item.get("CidrIpv6") for item in row.get("Ipv6Ranges") or []]
        peers += [item.get("GroupId") for item in row.get("UserIdGroupPairs") or []]
        for peer in peers:
            if peer:
                yield _description(str(peer), protocol, *ports)


def _described(row: Any) -> str:  # noqa: ANN401 - moto's rule
    addresses, source = row.ip_range or {}, row.source_group or {}
    peer = addresses.get("CidrIp") or addresses.get("CidrIpv6") or source.get("GroupId")
    return _description(str(peer), str(row.ip_protocol), row.from_port, row.to_port)


def _description(peer: str, protocol: str, first: Any, last: Any) -> str:  # noqa: ANN401 - wire data
    if protocol == _ALL:
        return f"peer: {peer}, ALL, ALLOW"
    if protocol.startswith("icmp"):
        kind, code = ("ALL" if str(value) in (_ALL, "None") else value for value in (first, last))
        return f"peer: {peer}, {protocol.upper()}, type: {kind}, code: {code}, ALLOW"
    return f"peer: {peer}, {protocol.upper()}, from port: {first}, to port: {last}, ALLOW"


def _uses(call: ParsedRequest, group_id: str) -> Iterator[str]:
    for interface in call.backend.enis.values():
        if any(group.id == group_id for group in interface.group_set):
            yield str(interface.id)
    for groups in call.backend.groups.values():
        for other in groups.values():
            if other.id != group_id and _refers_to(other, group_id):
                yield str(other.id)


def _refers_to(group: Any, group_id: str) -> bool:  # noqa: ANN401 - moto's group
    rules = [*group.ingress_rules, *group.egress_rules]
    return any(row.source_group.get("GroupId") == group_id for row in rules)


@RULES.action("DeleteSubnet")
def delete_subnet(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a subnet unless it contains a network interface."""
    subnet_id = str(call.params.get("SubnetId") or "")
    if any(interface.subnet.id == subnet_id for interface in call.backend.enis.values()):
        raise AwsError("DependencyViolation", f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")
    response = call.proceed()
    _forget_associations(call, subnet_id)
    return response


@RULES.action("DetachInternetGateway")
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


@RULES.action("CreateRoute")
def create_route(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create a route to an existing gateway."""
    _check_target(call)
    return call.proceed()


@RULES.action("ReplaceRoute")
def replace_route(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change a route to another existing gateway."""
    _check_target(call)
    return call.proceed()


@RULES.action("DescribeRouteTables")
def describe_route_tables(call: ParsedRequest) -> ActionResult:
    """Describe route tables. The main table of a default VPC has a default route, which moto does not create."""
    tables = call.proceed().result["RouteTables"]
    return ActionResult({"RouteTables": [_with_default_route(call, table) for table in tables]})


def _with_default_route(call: ParsedRequest, table: Any) -> Any:  # noqa: ANN401 - moto's route table
    """Return a main table of a default VPC with a route to an internet gateway, as AWS creates it with the VPC."""
    is_default = call.backend.vpcs[table.vpc_id].is_default and table.main_association_id
    if not is_default or any(route.destination_cidr_block == _EVERYWHERE for route in table.routes):
        return table
    outward = copy.copy(next(iter(table.routes)))
    # moto stores every target as an object, except the ID of an endpoint.
    gateway_id = f"igw-{table.vpc_id.removeprefix('vpc-')}"
    vars(outward).update(destination_cidr_block=_EVERYWHERE, local=False, vpc_endpoint_id=gateway_id)
    complete = copy.copy(table)
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


@RULES.action("CreateVpcEndpoint")
def create_vpc_endpoint(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Create an endpoint; reject a service that is not available in the region."""
    endpoint_type = call.params.get("VpcEndpointType") or "Gateway"
    service = str(call.params.get("ServiceName") or "")
    if endpoint_type not in _ENDPOINT_SERVICES:
        raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate {endpoint_type} endpoints.")
    if service not in (f"com.amazonaws.{call.region}.{name}" for name in _ENDPOINT_SERVICES[endpoint_type]):
        raise AwsError("InvalidServiceName", f"The Vpc Endpoint Service '{service}' does not exist")
    before = set(call.backend.vpc_end_points)
    response = call.proceed()
    for name in set(call.backend.vpc_end_points) - before:
        # moto stores the type exactly as requested and does not apply AWS's default.
        call.backend.vpc_end_points[name].vpc_endpoint_type = endpoint_type
    return response


@RULES.action("DescribeVpcEndpoints")
def describe_vpc_endpoints(call: ParsedRequest) -> dict[str, Any]:
    """Describe endpoints by id and filter, excluding deleted endpoints."""
    existing = {name: endpoint for name, endpoint in call.backend.vpc_end_points.items() if endpoint.state != "deleted"}
    ids = call.texts("VpcEndpointIds")
    for missing in (endpoint_id for endpoint_id in ids if endpoint_id not in existing):
        raise AwsError(_ENDPOINT_NOT_FOUND, not_found_message(_ENDPOINT_NOT_FOUND, [missing]))
    endpoints = [endpoint for name, endpoint in existing.items() if not ids or name in ids]
    for name, values in call.filters().items():
        endpoints = [endpoint for endpoint in endpoints if _endpoint_value(call, endpoint, name) & set(values)]
    return {"VpcEndpoints": endpoints}


@RULES.action("ModifyVpcEndpoint")
def modify_vpc_endpoint(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an endpoint and update its routes in the route tables. moto changes the endpoint but not the routes."""
    endpoint_id = str(call.params.get("VpcEndpointId") or "")
    endpoint = call.backend.vpc_end_points.get(endpoint_id)
    if endpoint is None or endpoint.state == "deleted":
        raise AwsError(_ENDPOINT_NOT_FOUND, not_found_message(_ENDPOINT_NOT_FOUND, [endpoint_id]))
    before = set(endpoint.route_table_ids)
    response = call.proceed()
    after = set(endpoint.route_table_ids)
    for table_id in sorted(after - before):
        prefix_list_id = endpoint.destination_prefix_list_id
        call.backend.create_route(table_id, None, gateway_id=endpoint_id, destination_prefix_list_id=prefix_list_id)
    for table_id in sorted(before - after):
        _drop_route(call, endpoint, table_id)
    return response


@RULES.action("DeleteVpcEndpoints")
def delete_vpc_endpoint(call: ParsedRequest) -> dict[str, Any]:
    """Delete each endpoint independently; the response lists the endpoints that could not be deleted."""
    failed: list[dict[str, Any]] = []
    for endpoint_id in call.texts("VpcEndpointIds"):
        endpoint = call.backend.vpc_end_points.get(endpoint_id)
        if endpoint is None or endpoint.state == "deleted":
            error = {
                "Code": "InvalidVpcEndpoint.NotFound",
                "Message": not_found_message(_ENDPOINT_NOT_FOUND, [endpoint_id]),
            }
            failed.append({"ResourceId": endpoint_id, "Error": error})
            continue
        for table_id in endpoint.route_table_ids:
            _drop_route(call, endpoint, table_id)
        for interface_id in endpoint.network_interface_ids:
            call.backend.enis.pop(interface_id, None)
        del call.backend.vpc_end_points[endpoint_id]
        call.backend.tags.pop(endpoint_id, None)
    return {"Unsuccessful": failed}


@RULES.action("DeleteVpc")
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


def _endpoint_value(call: ParsedRequest, endpoint: Any, name: str) -> set[str]:  # noqa: ANN401 - moto's endpoint
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
