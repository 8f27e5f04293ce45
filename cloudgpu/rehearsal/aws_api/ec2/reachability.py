"""Reachability of instances, computed from security groups, routes and gateways."""

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.aws_api.ec2.mount_access import mount_sources
from cloudgpu.rehearsal.aws_api.interfaces import NodeHost
from cloudgpu.rehearsal.nodes.values import Opened
from cloudgpu.rehearsal.state.records import Records

CALLER_ADDRESS = ipaddress.ip_address("127.0.0.1")
"""Source address that nodes see for every caller on this machine."""
ACCESS_CHANGING_ACTIONS = frozenset(
    {
        "AttachVolume",
        "AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupEgress",
        "RevokeSecurityGroupIngress",
        "RevokeSecurityGroupEgress",
        "ModifyInstanceAttribute",
        "ModifyNetworkInterfaceAttribute",
        "CreateRoute",
        "DeleteRoute",
        "ReplaceRoute",
        "AssociateRouteTable",
        "DisassociateRouteTable",
        "ReplaceRouteTableAssociation",
        "AttachInternetGateway",
        "DetachInternetGateway",
        "DetachVolume",
        "DeleteNatGateway",
    }
)
_SSH, _HTTPS = 22, 443
_EVERYWHERE = frozenset({"0.0.0.0/0", "::/0"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AllowedTraffic:
    """Which traffic is allowed: `ssh` from the caller to port 22, and `egress` from the node to the internet."""

    ssh: bool
    egress: bool


def node_access(backend: Any, instance: Any, role: str) -> Opened:  # noqa: ANN401 - moto is untyped
    """Return the instance's allowed traffic and the storage that it may mount."""
    reach = allowed_traffic(backend, instance)
    return Opened(reach.ssh, reach.egress, mount_sources(backend, instance, role))


def allowed_traffic(backend: Any, instance: Any) -> AllowedTraffic:  # noqa: ANN401 - moto is untyped
    """Return the traffic that an instance's security groups and routes allow. A public address is not required."""
    primary = instance.nics.get(0)
    if primary is None:
        return AllowedTraffic(ssh=False, egress=False)
    has_route = _has_internet_route(backend, primary.subnet)
    ingress_rules = [row for group in primary.group_set for row in group.ingress_rules]
    egress_rules = [row for group in primary.group_set for row in group.egress_rules]
    return AllowedTraffic(
        ssh=has_route and any(_allows(row, _SSH, _admits_caller) for row in ingress_rules),
        egress=has_route and any(_allows(row, _HTTPS, _is_everywhere) for row in egress_rules),
    )


def send_access(host: NodeHost, backend: Any, records: Records) -> None:  # noqa: ANN401
    """Send the access settings of running instances to the node host, if they changed."""
    for instance in backend.all_instances():
        record = records.nodes.get(instance.id)
        if record is None or instance.state != "running":
            continue
        now = node_access(backend, instance, record.role)
        if record.opened == now:
            continue
        record.opened = now
        _send(host, instance, now)


def resend_access(host: NodeHost, backend: Any, records: Records) -> None:  # noqa: ANN401
    """Resend the access settings of all running instances, after a call that changed them was undone."""
    for instance in backend.all_instances():
        if instance.state == "running" and instance.id in records.nodes:
            _send(host, instance, records.nodes[instance.id].opened)


def _send(host: NodeHost, instance: Any, now: Opened) -> None:  # noqa: ANN401
    try:
        host.set_access(str(instance.id), now)
    except CloudGpuError as err:
        _log.warning("cannot send the access settings of %s to the node host: %s", instance.id, err)


def _has_internet_route(backend: Any, subnet: Any) -> bool:  # noqa: ANN401
    """Return True if the subnet has a route to the internet. Default VPCs have one on AWS, but not in moto."""
    tables = [table for table in backend.route_tables.values() if table.vpc_id == subnet.vpc_id]
    explicit = [table for table in tables if subnet.id in table._associations.values()]
    if not explicit and backend.vpcs[subnet.vpc_id].is_default:
        return True
    main_tables = [table for table in tables if table.main_association_id]
    return any(_routes_to_internet(backend, table) for table in (explicit or main_tables))


def _routes_to_internet(backend: Any, table: Any) -> bool:  # noqa: ANN401
    for route in table.routes:
        if route.destination_cidr_block != "0.0.0.0/0":
            continue
        vpc, nat = getattr(route.gateway, "vpc", None), route.nat_gateway
        if vpc is not None and vpc.id == table.vpc_id:
            return True
        if nat is not None and nat.id in backend.nat_gateways and nat.state == "available":
            return True
    return False


def _allows(row: Any, port: int, fits: Callable[[str], bool]) -> bool:  # noqa: ANN401
    """Return True if a rule allows TCP traffic to a port from a matching address range."""
    if row.ip_protocol not in ("-1", "tcp"):
        return False
    if row.ip_protocol == "tcp" and not row.from_port <= port <= row.to_port:
        return False
    return any(fits(cidr) for cidr in (row.ip_range.get("CidrIp"), row.ip_range.get("CidrIpv6")) if cidr)


def _admits_caller(cidr: str) -> bool:
    return CALLER_ADDRESS in ipaddress.ip_network(cidr, strict=False)


def _is_everywhere(cidr: str) -> bool:
    return cidr in _EVERYWHERE
