"""Security groups and their network interfaces: checks that moto lacks, and one set of groups per interface.

Moto gives all interfaces of an instance the union of their own groups and the instance's.
"""

import copy
from collections.abc import Iterator
from typing import Any

from moto.ec2.exceptions import InvalidPermissionNotFoundError
from moto.ec2.models.elastic_network_interfaces import NetworkInterface

from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, rule

NetworkInterface.group_set = property(lambda interface: interface._group_set)  # type: ignore[assignment, method-assign]
_ALL = "-1"


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


@rule("DeleteSecurityGroup")
def delete(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Delete a security group, unless an interface or a rule of another group refers to the group."""
    group = _requested_group(call)
    if group is not None and any(True for _ in _uses(call, str(group.id))):
        raise AwsError("DependencyViolation", f"resource {group.id} has a dependent object")
    return call.proceed()


@rule("AuthorizeSecurityGroupIngress")
def authorize_ingress(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Add ingress rules, or none if the group already has one of them."""
    return _authorize(call, "ingress_rules")


@rule("AuthorizeSecurityGroupEgress")
def authorize_egress(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Add egress rules, or none if the group already has one of them."""
    return _authorize(call, "egress_rules")


@rule("RevokeSecurityGroupEgress")
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
