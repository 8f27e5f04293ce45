"""The storage that an instance may mount, based on its security groups, zone, attached volumes and access to S3."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.aws_api.fsx.records import region_file_systems

_NFS: Final = 2049
_LUSTRE: Final = 988
_DISK: Final = "/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_"
Pairs = tuple[tuple[str, str], ...]


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
        reachable = [target for target in targets if _allows(backend, target.security_groups or (), groups, _NFS)]
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
        if system.ending is None and _allows(backend, system.request.get("SecurityGroupIds") or (), groups, _LUSTRE):
            yield f"{system.id}.fsx.{region}.amazonaws.com@tcp:/{system.mount_name}", system.id


def _volumes(backend: Any, instance: Any) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    for volume in backend.volumes.values():
        attached = getattr(volume, "attachment", None)
        if attached is not None and attached.instance.id == instance.id:
            yield f"{_DISK}{volume.id.replace('-', '')}", str(volume.id)


def _buckets() -> Iterator[tuple[str, str]]:
    for name in s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets:
        yield str(name), str(name)


def _allows(backend: Any, server_groups: Iterable[str], client_groups: set[str], port: int) -> bool:  # noqa: ANN401
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
