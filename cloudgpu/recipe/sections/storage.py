"""The `storage`, `data` and `checkpoint` sections of a recipe."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.sections.section import Name, Section
from cloudgpu.recipe.storage_kinds import Deployment, StorageKind
from cloudgpu.recipe.units import DurationS, SizeGib

StorageName = Annotated[str, StringConstraints(pattern=r"^[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?$")]


class Data(Section):
    """A dataset that is copied to the nodes or mounted on them."""

    name: Name
    """Name of the dataset in `{data.NAME}` and in messages."""
    source: str = Field(alias="from")
    """Source: `s3://bucket/prefix/`, `s3://bucket/key`, `https://host/file`, `nfs://host/path`, `efs://fs-0123`,
    `lustre://host/name`, `oss://bucket/prefix`, or a path relative to the recipe. A dataset inside the
    work directory is copied only once, and the work directory on the nodes contains a link to it, unless the dataset
    has a manifest."""
    to: PurePosixPath
    """Target directory on every node, an absolute path."""
    mode: Literal["copy", "mount"] = "copy"
    """`copy` copies the data before the run, `mount` mounts it. S3 supports both; `https://` and local paths can only
    be copied; file systems and OSS can only be mounted."""
    share: Literal["each", "head"] = "each"
    """For `mode: copy`: with `each`, every node downloads from the source; with `head`, only the first node downloads,
    and the data is then copied from node to node over the cluster's network. `head` reduces the load on a slow source
    or uplink."""
    manifest: str | None = None
    """Checksum file in `sha256sum` format, next to the recipe; copied files must match it."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    """SHA-256 checksum of a single copied file, instead of a manifest."""
    keep: bool = True
    """Whether to keep the copy on the nodes for the next run; `false` removes the copy when the run finishes."""
    writable: bool = False
    """Whether to mount read-write instead of read-only."""
    client: Literal["mount-s3", "s3fs"] = "mount-s3"
    """Client that mounts an S3 bucket; see `storage.client`."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^\s/?#@]+$")
    """Endpoint of a mounted bucket that is not on AWS, for example `https://oss-cn-hangzhou-internal.aliyuncs.com`;
    required for `oss://`."""
    options: str = Field(default="", pattern=r"^[A-Za-z0-9_=.:/,-]*$")
    """Additional mount options, separated by commas, for example `vers=3,nolock`. They override the defaults."""
    within: DurationS = DurationS(60)
    """Time limit for the mount, for example `60s`."""

    def downloading_nodes(self, nodes: int) -> int:
        """Return the number of nodes that download from the source. The remaining nodes copy from other nodes."""
        return 1 if self.share == "head" else nodes


class Checkpoint(Section):
    """The checkpoints that a run writes, uploads and resumes from."""

    path: PurePosixPath
    """Directory for checkpoints, below the work directory."""
    to: str | None = None
    """S3 URL to which the head node uploads checkpoints during the run, for example `s3://bucket/runs/{run}`. Without
    `{run}`, the next run resumes from the checkpoints at this URL."""
    resume: str | None = Field(default=None, pattern=r"^s3://\S+$")
    """S3 URL of the checkpoints to resume from, for example `s3://bucket/runs/OLD-RUN`. They are downloaded to `path`
    before the ranks start."""
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"] = "SIGTERM"
    """Signal that the ranks receive when you stop the run, so that they can write a checkpoint."""
    grace: DurationS = DurationS(90)
    """Time between `signal` and SIGKILL, during which the ranks can write the checkpoint, for example `90s`."""


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
