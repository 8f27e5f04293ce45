"""Elastic IP addresses, their network interfaces and limits, and NAT gateways, which keep an address until deleted."""

import copy
from datetime import timedelta
from typing import Any

from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows, tag_list
from cloudgpu.rehearsal.server.error_responses import not_found_message

RULES = Rules()
DEFAULT_ADDRESS_LIMIT = 5
"""AWS's default limit per region; a row `region/elastic-ip/on-demand` in the quota table overrides this limit."""

_moto_association = NetworkInterface.association.fget  # type: ignore[attr-defined]
_DESCRIBE_CALLS = 2
"""Number of describe calls until a gateway leaves a transitional state. The last call returns the new state."""
_VISIBLE_AFTER_DELETION = timedelta(hours=1)
_TRANSITIONAL = ("pending", "deleting")


def _association(interface: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's interface
    """Return the association of the public address, whose owner is Amazon unless it is an Elastic IP."""
    association: dict[str, Any] = _moto_association(interface)
    return association if "allocationId" in association or not association else {**association, "ipOwnerId": "amazon"}


NetworkInterface.association = property(_association)  # type: ignore[assignment, method-assign]


def address_limit(call: ParsedRequest) -> int:
    """Return the maximum number of addresses that the account may allocate in this region."""
    limit = call.world.market.quota_of(call.region, "elastic-ip", "on-demand")
    return DEFAULT_ADDRESS_LIMIT if limit is None else limit


@RULES.action("AllocateAddress")
def allocate(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Allocate an address unless the region has reached its limit."""
    if len(call.backend.addresses) >= address_limit(call):
        raise AwsError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    return call.proceed()


@RULES.action("DescribeAccountAttributes")
def account_attributes(call: ParsedRequest) -> dict[str, Any]:
    """Return the simulated account attributes: the platform and the limits on Elastic IP addresses."""
    values = {"supported-platforms": "VPC", "vpc-max-elastic-ips": str(address_limit(call)), "max-elastic-ips": "5"}
    names = call.texts("AttributeNames") or list(values)
    rows = [
        {"AttributeName": name, "AttributeValues": [{"AttributeValue": values[name]}]}
        for name in names
        if name in values
    ]
    return {"AccountAttributes": rows}


@RULES.action("AssociateAddress")
def associate(call: ParsedRequest) -> dict[str, Any]:
    """Associate an address with a network interface whose VPC has an internet gateway."""
    address = _requested_address(call)
    interface = _requested_interface(call)
    _check_instance(interface)
    if not _has_gateway(call, interface.subnet.vpc_id):
        raise AwsError(
            "Gateway.NotAttached", f"Network {interface.subnet.vpc_id} is not attached to any internet gateway"
        )
    if address.eni is interface:
        return {"AssociationId": address.association_id}
    if address.association_id and not call.params.get("AllowReassociation"):
        raise AwsError(
            "Resource.AlreadyAssociated",
            f"resource {address.allocation_id} is already associated with associate-id {address.association_id}",
        )
    detach_address(address)
    call.backend.associate_address(eni=interface, allocation_id=address.allocation_id)
    address.instance = interface.instance
    return {"AssociationId": address.association_id}


@RULES.action("DisassociateAddress")
def disassociate(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Disassociate an address, unless a NAT gateway uses it. Only deleting the gateway releases such an address."""
    association_id = str(call.params.get("AssociationId") or "")
    matches = [address for address in call.backend.addresses if address.association_id == association_id]
    if matches and _belongs_to_gateway(call, matches[0]):
        raise AwsError("AuthFailure", "You do not have permission to access the specified resource.")
    return call.proceed()


@RULES.action("ReleaseAddress")
def release(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Release an address, unless it is still associated."""
    allocation_id = str(call.params.get("AllocationId") or "")
    address = next((item for item in call.backend.addresses if item.allocation_id == allocation_id), None)
    if address is not None and address.association_id:
        raise AwsError("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")
    response = call.proceed()
    call.backend.tags.pop(allocation_id, None)
    return response


@RULES.action("DescribeNetworkInterfaces")
def describe_interfaces(call: ParsedRequest) -> dict[str, Any]:
    """Describe interfaces by id and filter; moto cannot filter by attachment index or by type."""
    filters = call.filters()
    types = filters.pop("interface-type", None)
    index_filters = {name: filters.pop(f"attachment.{name}", None) for name in ("device-index", "network-card-index")}
    interfaces = call.backend.get_all_network_interfaces(call.texts("NetworkInterfaceIds"), filters)
    for name, values in index_filters.items():
        if values is not None:
            interfaces = [interface for interface in interfaces if _attachment_index(interface, name) in values]
    if types is not None:
        interfaces = [row for row in interfaces if getattr(row, "interface_type", "interface") in types]
    return {"NetworkInterfaces": [_with_association(interface) for interface in interfaces]}


def _with_association(interface: Any) -> Any:  # noqa: ANN401 - moto's interface
    """Return an interface whose primary private address has the association of the public address, as on AWS."""
    if not interface.public_ip:
        return interface
    shown = copy.copy(interface)
    shown.private_ip_addresses = [
        {**address, "Association": interface.association} if address.get("Primary") else address
        for address in interface.private_ip_addresses
    ]
    return shown


def _attachment_index(interface: Any, name: str) -> str:  # noqa: ANN401 - moto's interface
    index = getattr(interface, name.replace("-", "_"), None) if interface.instance is not None else None
    return "" if index is None else str(index)


@RULES.action("DeleteNetworkInterface")
def delete_interface(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete an interface, unless it is attached. As on AWS, the error code for an attached interface is generic."""
    interface_id = str(call.params.get("NetworkInterfaceId") or "")
    interface = call.backend.enis.get(interface_id)
    if interface is not None and (interface.instance is not None or _serves_gateway(call, interface)):
        raise AwsError("InvalidParameterValue", f"Network interface '{interface_id}' is currently in use.")
    return call.proceed()


def detach_address(address: Any) -> None:  # noqa: ANN401 - moto's address
    """Disassociate an address from the instance or NAT gateway that uses it."""
    if address.eni is not None and address.eni.public_ip == address.public_ip:
        address.eni.public_ip = None
    address.instance = address.eni = address.association_id = None


def _requested_address(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's address
    allocation_id = str(call.params.get("AllocationId") or "")
    if not allocation_id:
        raise AwsError("MissingParameter", "The request must contain the parameter AllocationId")
    return call.backend.address_by_allocation([allocation_id])[0]


def _requested_interface(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's interface
    interface_id = call.params.get("NetworkInterfaceId")
    if interface_id:
        return call.backend.get_network_interface(interface_id)
    instance_id = str(call.params.get("InstanceId") or "")
    if not instance_id:
        raise AwsError("MissingParameter", "Either instance ID or network interface id must be specified")
    instance = next((candidate for candidate in call.backend.all_instances() if candidate.id == instance_id), None)
    if instance is None:
        raise AwsError("InvalidInstanceID.NotFound", f"The instance ID '{instance_id}' does not exist")
    if len(instance.nics) > 1:
        raise AwsError(
            "InvalidInstanceID",
            f"There are multiple interfaces attached to instance '{instance_id}'. Please specify an interface ID for "
            "the operation instead.",
        )
    return instance.nics[0]


def _check_instance(interface: Any) -> None:  # noqa: ANN401 - moto's interface
    instance = interface.instance
    if instance is not None and instance.state not in ("running", "stopped", "stopping"):
        raise AwsError(
            "IncorrectInstanceState",
            f"The {instance.state} instance '{instance.id}' is not in a valid state for this operation.",
        )


def _has_gateway(call: ParsedRequest, vpc_id: str) -> bool:
    """Return True if the VPC has an internet gateway. Default VPCs have one on AWS, but not in moto."""
    vpc = call.backend.vpcs.get(vpc_id)
    attached = any(
        gateway.vpc is not None and gateway.vpc.id == vpc_id for gateway in call.backend.internet_gateways.values()
    )
    return attached or (vpc is not None and str(vpc.is_default).lower() == "true")


def _belongs_to_gateway(call: ParsedRequest, address: Any) -> bool:  # noqa: ANN401 - moto's address
    return address.eni is not None and _serves_gateway(call, address.eni)


def _serves_gateway(call: ParsedRequest, interface: Any) -> bool:  # noqa: ANN401 - moto's interface
    return any(
        gateway._eni is interface and gateway.state != "deleted" for gateway in call.backend.nat_gateways.values()
    )


@RULES.action("CreateNatGateway")
def create_nat_gateway(call: ParsedRequest) -> dict[str, Any]:
    """Start creating a gateway. If its address or network is unsuitable, its state becomes `failed` later."""
    subnet_id, allocation_id = str(call.params.get("SubnetId") or ""), str(call.params.get("AllocationId") or "")
    if call.params.get("ConnectivityType") not in (None, "public"):
        raise AwsError("UnsupportedOperation", "The rehearsal cloud simulates only public NAT gateways.")
    if not allocation_id:
        raise AwsError("MissingParameter", "The request must contain the parameter AllocationId")
    subnet = call.backend.get_subnet(subnet_id)
    address = call.backend.address_by_allocation([allocation_id])[0]
    failure = _nat_gateway_failure(call, subnet, address)
    gateway = call.backend.create_nat_gateway(subnet_id, "" if failure else allocation_id, call.tags_for("natgateway"))
    if failure:
        gateway.failure = failure
        call.backend.enis.pop(gateway._eni.id, None)
    gateway.created_at = call.world.clock.now()
    _set_gateway_state(gateway, "pending")
    return {"NatGateway": _gateway_description(call, gateway)}


@RULES.action("DescribeNatGateways")
def describe_nat_gateways(call: ParsedRequest) -> dict[str, Any]:
    """Describe gateways by id and filter, with pagination. Each call advances gateways in a transitional state."""
    _forget_old(call)
    ids = call.texts("NatGatewayIds")
    for missing in (gateway_id for gateway_id in ids if gateway_id not in call.backend.nat_gateways):
        raise AwsError("NatGatewayNotFound", not_found_message("NatGatewayNotFound", [missing]))
    gateways = [gateway for name, gateway in call.backend.nat_gateways.items() if not ids or name in ids]
    filters = {row["Name"]: [str(value) for value in row["Values"]] for row in call.params.get("Filter") or []}
    for name, values in filters.items():
        gateways = [gateway for gateway in gateways if _gateway_value(call, gateway, name) & set(values)]
    for gateway in gateways:
        _advance(call, gateway)
    rows, token = paginate_rows([_gateway_description(call, gateway) for gateway in gateways], call.params)
    return {"NatGateways": rows, "NextToken": token}


@RULES.action("DeleteNatGateway")
def delete_nat_gateway(call: ParsedRequest) -> dict[str, Any]:
    """Start deleting a gateway; its interface and address are released once it is deleted."""
    gateway_id = str(call.params.get("NatGatewayId") or "")
    gateway = call.backend.nat_gateways.get(gateway_id)
    if gateway is None or gateway.state == "deleted":
        raise AwsError("NatGatewayNotFound", not_found_message("NatGatewayNotFound", [gateway_id]))
    if gateway.state != "deleting":
        _set_gateway_state(gateway, "deleting")
    return {"NatGatewayId": gateway_id}


def _nat_gateway_failure(call: ParsedRequest, subnet: Any, address: Any) -> tuple[str, str] | None:  # noqa: ANN401 - moto's objects
    gateways = call.backend.internet_gateways.values()
    if address.association_id:
        return "Resource.AlreadyAssociated", f"Elastic IP address [{address.allocation_id}] is already associated"
    if not any(gateway.vpc is not None and gateway.vpc.id == subnet.vpc_id for gateway in gateways):
        return "Gateway.NotAttached", f"Network {subnet.vpc_id} has no Internet gateway attached"
    return None


def _set_gateway_state(gateway: Any, state: str) -> None:  # noqa: ANN401 - moto's gateway
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


def _gateway_value(call: ParsedRequest, gateway: Any, name: str) -> set[str]:  # noqa: ANN401 - moto's gateway
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


def _gateway_description(call: ParsedRequest, gateway: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's gateway
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
