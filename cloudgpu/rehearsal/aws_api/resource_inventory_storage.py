"""List file systems and other storage in every region, as recorded by the simulated services."""

from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.aws_api.fsx.records import region_file_systems


def file_systems() -> list[dict[str, Any]]:
    """Return all EFS and Lustre file systems, including Lustre file systems that are being deleted."""
    rows: list[dict[str, Any]] = []
    for _, region, backend in _iter(ec2_backends):
        rows += [
            {"region": region, "id": system.id, "tags": dict(system.tags)} for system in region_file_systems(backend)
        ]
    for _, region, backend in _iter(efs_backends):
        for name in backend.file_systems_by_id:
            tags = {row["Key"]: row["Value"] for row in backend.list_tags_for_resource(name)}
            rows.append({"region": region, "id": name, "tags": tags})
    return rows


def data_resource_ids() -> frozenset[str]:
    """Return the ids of all resources that may contain data written by nodes."""
    ids = {str(row["id"]) for row in file_systems()}
    ids |= {str(name) for _, _, backend in _iter(ec2_backends) for name in backend.volumes}
    return frozenset(ids | {str(name) for _, _, backend in _iter(s3_backends) for name in backend.buckets})


def _iter(backends: BackendDict[Any]) -> list[Any]:
    return list(backends.iter_backends())
