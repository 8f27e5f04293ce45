"""Elastic IP addresses: each region has a limit, and each address is associated with at most one network interface."""

import copy
from typing import Any

from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule

DEFAULT_ADDRESS_LIMIT = 5
"""AWS's default limit per region; a row `region/elastic-ip/on-demand` in the quota table overrides this limit."""

_moto_association = NetworkInterface.association.fget  # type: ignore[attr-defined]


def _association(interface: Any) -> dict[str, Any]:  # noqa: ANN401 - moto's interface
    """Return the association of the public address, whose owner is Amazon unless it is an Elastic IP."""
    association: dict[str, Any] = _moto_association(interface)
    return association if "allocationId" in association or not association else {**association, "ipOwnerId": "amazon"}


NetworkInterface.association = property(_association)  # type: ignore[assignment, method-assign]


def address_limit(call: ParsedRequest) -> int:
    """Return the maximum number of addresses that the account may allocate in this region."""
    limit = call.world.market.quota_of(call.region, "elastic-ip", "on-demand")
    return DEFAULT_ADDRESS_LIMIT if limit is None else limit


@rule("AllocateAddress")
def allocate(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Allocate an address unless the region has reached its limit."""
    if len(call.backend.addresses) >= address_limit(call):
        raise AwsError("AddressLimitExceeded", "The maximum number of addresses has been reached.")
    return call.proceed()


@rule("DescribeAccountAttributes")
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


@rule("AssociateAddress")
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


@rule("DisassociateAddress")
def disassociate(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Disassociate an address, unless a NAT gateway uses it. Only deleting the gateway releases such an address."""
    association_id = str(call.params.get("AssociationId") or "")
    matches = [address for address in call.backend.addresses if address.association_id == association_id]
    if matches and _belongs_to_gateway(call, matches[0]):
        raise AwsError("AuthFailure", "You do not have permission to access the specified resource.")
    return call.proceed()


@rule("ReleaseAddress")
def release(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Release an address, unless it is still associated."""
    allocation_id = str(call.params.get("AllocationId") or "")
    address = next((item for item in call.backend.addresses if item.allocation_id == allocation_id), None)
    if address is not None and address.association_id:
        raise AwsError("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")
    response = call.proceed()
    call.backend.tags.pop(allocation_id, None)
    return response


@rule("DescribeNetworkInterfaces")
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


@rule("DeleteNetworkInterface")
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
