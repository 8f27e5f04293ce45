"""Cluster records, built and changed by the names of their fields, whichever part of the record has the field."""

from dataclasses import fields, replace
from typing import Any

from cloudgpu.state.cluster_record import ClusterIdentity, ClusterLifecycle, ClusterPlacement, ClusterRecord

_PARTS = {"identity": ClusterIdentity, "placement": ClusterPlacement, "lifecycle": ClusterLifecycle}
_PART_OF = {field.name: part for part, kind in _PARTS.items() for field in fields(kind)}
_IDENTITY = {
    "name": "lab", "token": "t", "owner": "ann", "team": "", "recipe": "plain", "target": "aws", "account": "1",
    "endpoint": "", "made_by": "up",
}  # fmt: skip


def cluster_record(**values: Any) -> ClusterRecord:
    """Return a record; `created_at` and `expires_at` must be given, and the rest of the identity has a default."""
    by_part: dict[str, dict[str, Any]] = {part: {} for part in _PARTS}
    for name, value in (_IDENTITY | values).items():
        by_part[_PART_OF[name]][name] = value
    return ClusterRecord(**{part: kind(**by_part[part]) for part, kind in _PARTS.items()})


def changed(record: ClusterRecord, **values: Any) -> ClusterRecord:
    """Return the record with other values."""
    for name, value in values.items():
        part = _PART_OF[name]
        record = replace(record, **{part: replace(getattr(record, part), **{name: value})})
    return record
