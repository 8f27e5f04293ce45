"""File systems, in every region, from the endpoint's own state."""

from typing import Any

from moto.core.base_backend import BackendDict
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.aws_api.fsx.records import systems_of


def file_systems() -> list[dict[str, Any]]:
    """EFS and Lustre; one that is on its way out still counts."""
    found: list[dict[str, Any]] = []
    for _, region, backend in _iter(ec2_backends):
        found += [{"region": region, "id": one.id, "tags": dict(one.tags)} for one in systems_of(backend)]
    for _, region, backend in _iter(efs_backends):
        for name in backend.file_systems_by_id:
            tags = {row["Key"]: row["Value"] for row in backend.list_tags_for_resource(name)}
            found.append({"region": region, "id": name, "tags": tags})
    return found


def holding() -> frozenset[str]:
    """The ids of everything that may hold data of nodes."""
    found = {str(one["id"]) for one in file_systems()}
    found |= {str(name) for _, _, backend in _iter(ec2_backends) for name in backend.volumes}
    return frozenset(found | {str(name) for _, _, backend in _iter(s3_backends) for name in backend.buckets})


def _iter(backends: BackendDict[Any]) -> list[Any]:
    return list(backends.iter_backends())
