"""What instances can reach, and which storage they may mount, computed from the simulated network.

An internet gateway translates only public addresses: without one, a node reaches the internet through a NAT
gateway, and AWS services also through VPC endpoints.
"""

import ipaddress
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends
from moto.s3.models import s3_backends

from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.aws_api.fsx import region_file_systems
from cloudgpu.rehearsal.aws_api.interfaces import NodeHost
from cloudgpu.rehearsal.aws_api.records import Records
from cloudgpu.rehearsal.nodes.values import Opened

_NFS: Final = 2049
_LUSTRE: Final = 988
_DISK: Final = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_"
Pairs = tuple[tuple[str, str], ...]
CALLER_ADDRESS = ipaddress.ip_address("127.0.0.1")
"""Source address that nodes see for every caller on this machine."""
ACCESS_CHANGING_ACTIONS = frozenset(
    {
        "AssociateAddress",
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
        "CreateVpcEndpoint",
        "DeleteVpcEndpoints",
        "DetachInternetGateway",
        "DisassociateAddress",
        "DetachVolume",
        "DeleteNatGateway",
    }
)
_EVERYWHERE = "0.0.0.0/0"
"""Nodes have no IPv6 address, so that a rule for all of IPv6 lets nothing out."""
_log = logging.getLogger(__name__)


def mount_sources(backend: Any, instance: Any, *, buckets: bool) -> Pairs:  # noqa: ANN401 - moto is untyped
    """Return the instance's mount sources in sorted order, each with the name of its backing directory.

    S3 buckets are included if `buckets` is True: the instance has a role and can reach S3.
    """
    primary = instance.nics.get(0)
    groups = {str(group.id) for group in primary.group_set} if primary is not None else set()
    region = str(backend.region_name)
    pairs = [*_volumes(backend, instance), *_lustre(backend, region, groups)]
    pairs += _efs(backend, region, str(instance.placement.zone), groups)
    if buckets:
        pairs += _buckets()
    return tuple(sorted(pairs))


def _efs(backend: Any, region: str, zone: str, groups: set[str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield the pairs for EFS file systems that have a reachable mount target in the instance's zone."""
    for name, system in efs_backends[DEFAULT_ACCOUNT_ID][region].file_systems_by_id.items():
        targets = [target for target in system._mount_targets.values() if target.availability_zone_name == zone]
        reachable = [target for target in targets if _allows_mount(backend, target.security_groups or (), groups, _NFS)]
        if reachable:
            yield str(reachable[0].ip_address), name
            if _resolves_names(backend, reachable[0]):
                yield f"{name}.efs.{region}.amazonaws.com", name


def _resolves_names(backend: Any, target: Any) -> bool:  # noqa: ANN401
    """Return True if the names of EFS resolve in the mount target's VPC, which a new VPC must be told."""
    vpc = backend.vpcs[target.vpc_id]
    return all(str(value).lower() == "true" for value in (vpc.enable_dns_support, vpc.enable_dns_hostnames))


def _lustre(backend: Any, region: str, groups: set[str]) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for system in region_file_systems(backend):
        if system.ending is None and _allows_mount(
            backend, system.request.get("SecurityGroupIds") or (), groups, _LUSTRE
        ):
            yield f"{system.id}.fsx.{region}.amazonaws.com@tcp:/{system.mount_name}", system.id


def _volumes(backend: Any, instance: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for volume in backend.volumes.values():
        attached = getattr(volume, "attachment", None)
        if attached is not None and attached.instance.id == instance.id:
            yield f"{_DISK}{volume.id.replace('-', '')}", str(volume.id)


def _buckets() -> Iterator[tuple[str, str]]:
    for name in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets:
        yield str(name), str(name)


def _allows_mount(backend: Any, server_groups: Iterable[str], client_groups: set[str], port: int) -> bool:  # noqa: ANN401
    """Return True if one of the server's security groups allows traffic to the port from a client group."""
    for group_id in server_groups:
        group = backend.get_security_group_from_id(group_id)
        for row in group.ingress_rules if group is not None else ():
            port_matches = row.ip_protocol == "-1" or (
                row.ip_protocol == "tcp" and row.from_port <= port <= row.to_port
            )
            if port_matches and str(row.source_group.get("GroupId")) in client_groups:
                return True
    return False


_SSH, _HTTPS = 22, 443


@dataclass(frozen=True)
class AllowedTraffic:
    """The allowed traffic: `ssh` from the caller to port 22, and `egress` from the node to the internet."""

    ssh: bool
    egress: bool


def node_access(backend: Any, instance: Any, role: str) -> Opened:  # noqa: ANN401 - moto is untyped
    """Return the instance's allowed traffic and the storage that it may mount."""
    reach = allowed_traffic(backend, instance)
    reads_buckets = bool(role) and (reach.egress or _has_s3_endpoint(backend, instance))
    return Opened(reach.ssh, reach.egress, mount_sources(backend, instance, buckets=reads_buckets))


def allowed_traffic(backend: Any, instance: Any) -> AllowedTraffic:  # noqa: ANN401 - moto is untyped
    """Return the traffic that an instance's security groups, routes and addresses allow.

    SSH does not require a public address, because the caller may be a bastion of the VPC.
    """
    primary = instance.nics.get(0)
    if primary is None:
        return AllowedTraffic(ssh=False, egress=False)
    way_out = _way_out(backend, primary.subnet)
    ingress_rules = [row for group in primary.group_set for row in group.ingress_rules]
    return AllowedTraffic(
        ssh=bool(way_out) and any(_allows(row, _SSH, _admits_caller) for row in ingress_rules),
        egress=(way_out == "nat" or (way_out == "gateway" and bool(primary.public_ip))) and _may_leave(primary),
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


def _may_leave(interface: Any) -> bool:  # noqa: ANN401
    """Return True if the interface's security groups allow HTTPS to the internet."""
    rules = [row for group in interface.group_set for row in group.egress_rules]
    return any(_allows(row, _HTTPS, _is_everywhere) for row in rules)


def _has_s3_endpoint(backend: Any, instance: Any) -> bool:  # noqa: ANN401
    """Return True if a gateway endpoint connects the instance's subnet to S3."""
    primary = instance.nics.get(0)
    if primary is None or not _may_leave(primary):
        return False
    tables = {str(table.id) for table in _route_tables(backend, primary.subnet)}
    return any(
        point.service_name.endswith(".s3") and point.state != "deleted" and tables & set(point.route_table_ids or ())
        for point in backend.vpc_end_points.values()
    )


def _route_tables(backend: Any, subnet: Any) -> list[Any]:  # noqa: ANN401
    """Return the subnet's route table, or the main table of its VPC."""
    tables = [table for table in backend.route_tables.values() if table.vpc_id == subnet.vpc_id]
    explicit = [table for table in tables if subnet.id in table._associations.values()]
    return explicit or [table for table in tables if table.main_association_id]


def _way_out(backend: Any, subnet: Any) -> Literal["gateway", "nat", ""]:  # noqa: ANN401
    """Return where the subnet's default route leads. Default VPCs have one on AWS, but not in moto."""
    tables = _route_tables(backend, subnet)
    if backend.vpcs[subnet.vpc_id].is_default and all(table.main_association_id for table in tables):
        return "gateway"
    return next((way for table in tables if (way := _default_route(backend, table))), "")


def _default_route(backend: Any, table: Any) -> Literal["gateway", "nat", ""]:  # noqa: ANN401
    for route in table.routes:
        if route.destination_cidr_block != _EVERYWHERE:
            continue
        vpc, nat = getattr(route.gateway, "vpc", None), route.nat_gateway
        if vpc is not None and vpc.id == table.vpc_id:
            return "gateway"
        if nat is not None and nat.id in backend.nat_gateways and nat.state == "available":
            return "nat"
    return ""


def _allows(row: Any, port: int, fits: Callable[[str], bool]) -> bool:  # noqa: ANN401
    """Return True if a rule allows TCP traffic to a port and has an address range for which `fits` returns True."""
    if row.ip_protocol not in ("-1", "tcp"):
        return False
    if row.ip_protocol == "tcp" and not row.from_port <= port <= row.to_port:
        return False
    return any(fits(cidr) for cidr in (row.ip_range.get("CidrIp"), row.ip_range.get("CidrIpv6")) if cidr)


def _admits_caller(cidr: str) -> bool:
    return CALLER_ADDRESS in ipaddress.ip_network(cidr, strict=False)


def _is_everywhere(cidr: str) -> bool:
    return cidr == _EVERYWHERE
