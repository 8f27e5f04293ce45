"""NAT gateways: creation and deletion take time, and a gateway keeps its address and interface until it is deleted."""

from datetime import timedelta
from typing import Any

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, paginate_rows, rule, tag_list
from cloudgpu.rehearsal.aws_api.ec2.elastic_ips import detach_address
from cloudgpu.rehearsal.server.error_responses import not_found_message

_DESCRIBE_CALLS = 2
"""Number of describe calls until a gateway leaves a transitional state. The last call returns the new state."""
_VISIBLE_AFTER_DELETION = timedelta(hours=1)
_TRANSITIONAL = ("pending", "deleting")


@rule("CreateNatGateway")
def create(call: ParsedRequest) -> dict[str, Any]:
    """Start creating a gateway. If its address or network is unsuitable, its state becomes `failed` later."""
    subnet_id, allocation_id = str(call.params.get("SubnetId") or ""), str(call.params.get("AllocationId") or "")
    if call.params.get("ConnectivityType") not in (None, "public"):
        raise AwsError("UnsupportedOperation", "The rehearsal cloud simulates only public NAT gateways.")
    if not allocation_id:
        raise AwsError("MissingParameter", "The request must contain the parameter AllocationId")
    subnet = call.backend.get_subnet(subnet_id)
    address = call.backend.address_by_allocation([allocation_id])[0]
    failure = _failure(call, subnet, address)
    gateway = call.backend.create_nat_gateway(subnet_id, "" if failure else allocation_id, call.tags_for("natgateway"))
    if failure:
        gateway.failure = failure
        call.backend.enis.pop(gateway._eni.id, None)
    gateway.created_at = call.world.clock.now()
    _set_state(gateway, "pending")
    return {"NatGateway": _shown(call, gateway)}


@rule("DescribeNatGateways")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe gateways by id and filter, with pagination. Each call advances gateways in a transitional state."""
    _forget_old(call)
    ids = call.texts("NatGatewayIds")
    for missing in (gateway_id for gateway_id in ids if gateway_id not in call.backend.nat_gateways):
        raise AwsError("NatGatewayNotFound", not_found_message("NatGatewayNotFound", [missing]))
    gateways = [gateway for name, gateway in call.backend.nat_gateways.items() if not ids or name in ids]
    filters = {row["Name"]: [str(value) for value in row["Values"]] for row in call.params.get("Filter") or []}
    for name, values in filters.items():
        gateways = [gateway for gateway in gateways if _value(call, gateway, name) & set(values)]
    for gateway in gateways:
        _advance(call, gateway)
    rows, token = paginate_rows([_shown(call, gateway) for gateway in gateways], call.params)
    return {"NatGateways": rows, "NextToken": token}


@rule("DeleteNatGateway")
def delete(call: ParsedRequest) -> dict[str, Any]:
    """Start deleting a gateway; its interface and address are released once it is deleted."""
    gateway_id = str(call.params.get("NatGatewayId") or "")
    gateway = call.backend.nat_gateways.get(gateway_id)
    if gateway is None or gateway.state == "deleted":
        raise AwsError("NatGatewayNotFound", not_found_message("NatGatewayNotFound", [gateway_id]))
    if gateway.state != "deleting":
        _set_state(gateway, "deleting")
    return {"NatGatewayId": gateway_id}


def _failure(call: ParsedRequest, subnet: Any, address: Any) -> tuple[str, str] | None:  # noqa: ANN401 - moto's objects
    gateways = call.backend.internet_gateways.values()
    if address.association_id:
        return "Resource.AlreadyAssociated", f"Elastic IP address [{address.allocation_id}] is already associated"
    if not any(gateway.vpc is not None and gateway.vpc.id == subnet.vpc_id for gateway in gateways):
        return "Gateway.NotAttached", f"Network {subnet.vpc_id} has no Internet gateway attached"
    return None


def _set_state(gateway: Any, state: str) -> None:  # noqa: ANN401 - moto's gateway
    gateway.state, gateway.looks = state, _DESCRIBE_CALLS


def _advance(call: ParsedRequest, gateway: Any) -> None:  # noqa: ANN401 - moto's gateway
    if gateway.state not in _TRANSITIONAL:
        return
    gateway.looks -= 1
    if gateway.looks > 0:
        return
    if gateway.state == "deleting":
        _finish_deletion(call, gateway)
    else:
        gateway.state = "failed" if getattr(gateway, "failure", None) else "available"


def _finish_deletion(call: ParsedRequest, gateway: Any) -> None:  # noqa: ANN401 - moto's gateway
    gateway.state, gateway.ended_at = "deleted", call.world.clock.now()
    for address in call.backend.addresses:
        if address.eni is gateway._eni:
            detach_address(address)
    call.backend.enis.pop(gateway._eni.id, None)


def _forget_old(call: ParsedRequest) -> None:
    before = call.world.clock.now() - _VISIBLE_AFTER_DELETION
    gateways = call.backend.nat_gateways
    for name in [
        name for name, gateway in gateways.items() if gateway.state == "deleted" and gateway.ended_at < before
    ]:
        del gateways[name]
        call.backend.tags.pop(name, None)


def _value(call: ParsedRequest, gateway: Any, name: str) -> set[str]:  # noqa: ANN401 - moto's gateway
    tags = call.backend.tags.get(gateway.id, {})
    if name.startswith("tag:"):
        return {str(tags[name[4:]])} if name[4:] in tags else set()
    known = {
        "tag-key": set(tags),
        "nat-gateway-id": {gateway.id},
        "subnet-id": {gateway.subnet_id},
        "vpc-id": {gateway.vpc_id},
        "state": {gateway.state},
    }
    if name not in known:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return known[name]


def _shown(call: ParsedRequest, gateway: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's gateway
    addresses = [{key[:1].upper() + key[1:]: value for key, value in row.items()} for row in gateway.address_set]
    code, message = getattr(gateway, "failure", None) or (None, None)
    return {
        "NatGatewayId": gateway.id,
        "SubnetId": gateway.subnet_id,
        "VpcId": gateway.vpc_id,
        "State": gateway.state,
        "ConnectivityType": gateway.connectivity_type,
        "CreateTime": gateway.created_at,
        "DeleteTime": gateway.ended_at if gateway.state == "deleted" else None,
        "NatGatewayAddresses": addresses,
        "FailureCode": code if gateway.state == "failed" else None,
        "FailureMessage": message if gateway.state == "failed" else None,
        "Tags": tag_list(dict(call.backend.tags.get(gateway.id, {}))),
    }
