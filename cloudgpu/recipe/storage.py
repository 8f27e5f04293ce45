"""The `storage` section: file systems, disks and buckets that every node has mounted."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.units import SizeGib

StorageName = Annotated[str, StringConstraints(pattern=r"^[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?$")]


class Make(Section):
    """Storage that is made with the cluster."""

    kind: Literal["efs", "lustre", "ebs", "s3"]
    """Shared files, parallel files in one zone, a disk for one node in one zone, or a bucket."""
    size: SizeGib | None = None
    """Of a disk or of Lustre, for instance `1200GiB`; the other kinds grow with what they hold."""
    deployment: Literal["scratch_2", "persistent_2"] | None = None
    """Of Lustre: cheaper and not replicated (the default), or replicated."""
    linked: str | None = Field(default=None, pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/\S*)?$")
    """Of Lustre: show this bucket or prefix as its files."""
    snapshot: str | None = Field(default=None, pattern=r"^snap-[0-9a-f]{8,17}$")
    """Of a disk: what it holds at first."""


class Storage(Section):
    """Storage that every node mounts before the run."""

    name: StorageName
    """The name it was made under by `cloudgpu storage create`, or, with `make`, is made under."""
    to: PurePosixPath
    """Absolute directory on every node."""
    mode: Literal["rw", "ro"] = "rw"
    """Whether the nodes may write to it."""
    client: Literal["mount-s3", "s3fs"] = "mount-s3"
    """Of a bucket, what shows it as files: `mount-s3` is fast and writes whole files only, `s3fs` is slow and lets
    files be changed in place."""
    make: Make | None = None
    """Make it with the cluster, unless it stands already; without this it has to be there."""
    keep: bool = True
    """Of what is made: whether it stays when the cluster ends. `false` makes storage of this cluster's own, which
    `down` deletes with all that it holds."""
