"""Security groups of network interfaces: every interface has its own, and an instance has those of its primary one.

Moto gives all interfaces of an instance the union of their own groups and the instance's.
"""

from typing import Any

from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from cloudgpu.rehearsal.aws_api.rules import ParsedRequest, rule

NetworkInterface.group_set = property(lambda interface: interface._group_set)  # type: ignore[assignment, method-assign]


@rule("ModifyNetworkInterfaceAttribute")
def modify_interface(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an interface. The groups of a primary interface become the instance's."""
    response = call.proceed()
    interface = call.backend.enis[str(call.params["NetworkInterfaceId"])]
    instance = interface.instance
    if instance is not None and instance.nics.get(0) is interface:
        instance.security_groups = list(interface.group_set)
    return response


@rule("ModifyInstanceAttribute")
def modify_instance(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Change an instance. Its groups become those of its primary interface."""
    response = call.proceed()
    instance = call.backend.get_instance(str(call.params["InstanceId"]))
    if call.params.get("Groups") and 0 in instance.nics:
        instance.nics[0]._group_set = list(instance.security_groups)
    return response
