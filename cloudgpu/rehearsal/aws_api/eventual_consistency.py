"""Eventual consistency: calls cannot find a resource for a short time after it is created."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloudgpu.rehearsal.aws_api.rules import AwsError
from cloudgpu.rehearsal.faults.active_conditions import ActiveConditions

_CODES: Mapping[str, str] = {
    "i": "InvalidInstanceID.NotFound",
    "vol": "InvalidVolume.NotFound",
    "eni": "InvalidNetworkInterfaceID.NotFound",
    "sg": "InvalidGroup.NotFound",
    "vpc": "InvalidVpcID.NotFound",
    "subnet": "InvalidSubnetID.NotFound",
    "igw": "InvalidInternetGatewayID.NotFound",
    "rtb": "InvalidRouteTableID.NotFound",
    "lt": "InvalidLaunchTemplateId.NotFound",
    "eipalloc": "InvalidAllocationID.NotFound",
    "nat": "NatGatewayNotFound",
    "vpce": "InvalidVpcEndpointId.NotFound",
}
_PREFIX_BY_ACTION: Mapping[str, str] = {
    "RunInstances": "i",
    "CreateFleet": "i",
    "CreateVolume": "vol",
    "CreateNetworkInterface": "eni",
    "CreateSecurityGroup": "sg",
    "CreateVpc": "vpc",
    "CreateSubnet": "subnet",
    "CreateInternetGateway": "igw",
    "CreateRouteTable": "rtb",
    "CreateLaunchTemplate": "lt",
    "AllocateAddress": "eipalloc",
    "CreateNatGateway": "nat",
    "CreateVpcEndpoint": "vpce",
}


def record_new_resources(behaviour: ActiveConditions, action: str, body: str | bytes) -> None:
    """Record the ids of the new resources in the response to a create call."""
    prefix = _PREFIX_BY_ACTION.get(action)
    if prefix is None or not behaviour.now.unseen_calls:
        return
    text = body.decode() if isinstance(body, bytes) else body
    for resource_id in set(re.findall(rf">({prefix}-[0-9a-f]{{8,17}})<", text)):
        behaviour.made(resource_id)


def reject_invisible(behaviour: ActiveConditions, params: Any) -> None:  # noqa: ANN401 - wire data
    """Reject a call that refers to a resource that is not visible yet.

    Raises:
        AwsError: The resource is not visible yet; the error code depends on the resource type.
    """
    if not behaviour.now.unseen_calls:
        return
    for text in dict.fromkeys(_texts(params)):
        code = _CODES.get(text.partition("-")[0])
        if code and behaviour.unseen(text):
            raise AwsError(code, f"The ID '{text}' does not exist")


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - wire data
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
