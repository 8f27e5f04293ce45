"""The `storage` section of a recipe: file systems, volumes and buckets that every node mounts."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.storage_kinds import Deployment, StorageKind
from cloudgpu.recipe.units import SizeGib

StorageName = Annotated[str, StringConstraints(pattern=r"^[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?$")]


class Make(Section):
    """Storage that is created with the cluster."""

    kind: StorageKind
    """`efs` is a shared file system, `lustre` a parallel file system in one zone, `ebs` a volume for one node in one
    zone, `s3` a bucket."""
    size: SizeGib | None = None
    """Size of a volume or Lustre file system, for example `1200GiB`. `efs` and `s3` grow as needed."""
    deployment: Deployment | None = None
    """Lustre deployment type: `scratch_2` (the default) is cheaper and not replicated, `persistent_2` is replicated."""
    linked: str | None = Field(default=None, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^\s*?]*)?$")
    """S3 bucket or prefix whose objects a Lustre file system presents as files."""
    snapshot: str | None = Field(default=None, pattern=r"^snap-[0-9a-f]{8,17}$")
    """EBS snapshot from which to create the volume."""


class Storage(Section):
    """Storage that every node mounts before the run."""

    name: StorageName
    """Name of the storage: the name given to `cloudgpu storage create` or, with `make`, the name of the storage to
    create."""
    to: PurePosixPath
    """Mount point on every node, an absolute path."""
    mode: Literal["rw", "ro"] = "rw"
    """Access mode: read-write (`rw`) or read-only (`ro`)."""
    client: Literal["mount-s3", "s3fs"] = "mount-s3"
    """Client that mounts a bucket: `mount-s3` is fast but can only write whole files; `s3fs` is slow but can change
    files in place."""
    make: Make | None = None
    """Properties with which the storage is created if it does not exist. Without `make`, the storage must exist."""
    keep: bool = True
    """Whether to retain created storage when the cluster is deleted. With `false`, the storage belongs to this cluster
    only, and `down` deletes it with all its data."""
