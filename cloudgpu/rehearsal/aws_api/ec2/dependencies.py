"""Deletion of subnets and detachment of internet gateways. AWS rejects both while the resource is in use."""

from collections.abc import Iterator
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, rule


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
