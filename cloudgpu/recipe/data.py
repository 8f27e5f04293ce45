"""The `data` and `checkpoint` sections: what a run reads, and what it needs to go on later."""

from pathlib import PurePosixPath
from typing import Literal

from pydantic import Field

from cloudgpu.recipe.section import Name, Section
from cloudgpu.recipe.units import DurationS


class Data(Section):
    """One dataset."""

    name: Name
    """How the rehearsal stanza and messages call it."""
    source: str = Field(alias="from")
    """Where it is: `s3://bucket/prefix/`, `s3://bucket/key`, `https://host/file`, `nfs://host/path`, `efs://fs-0123`,
    `lustre://host/name`, `oss://bucket/prefix`, or a path relative to the recipe."""
    to: PurePosixPath
    """Absolute directory on every node."""
    mode: Literal["copy", "mount"] = "copy"
    """Copy before the run, or mount. S3 can be both; `https://` and paths are copied, file systems and OSS mounted."""
    share: Literal["each", "head"] = "each"
    """Of a copy: every node fetches it from the source, or the first one does and the others get it from node to node,
    over the cluster's own network. `head` spares a slow source, or your own line."""
    manifest: str | None = None
    """File beside the recipe in `sha256sum` form; what is copied must match it."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    """Checksum of a single file that is copied, where a manifest would be too much."""
    keep: bool = True
    """Leave the copy on the nodes for the next run; `false` removes it when the run has ended."""
    writable: bool = False
    """Let the ranks write to what is mounted."""
    client: Literal["mount-s3", "s3fs"] = "mount-s3"
    """Of a bucket in S3 that is mounted, what shows it as files; see `storage.client`."""
    endpoint: str | None = Field(default=None, pattern=r"^https?://[^\s/?#@]+$")
    """Of a mounted bucket, the service that has it where that is not AWS, for instance
    `https://oss-cn-hangzhou-internal.aliyuncs.com`; required for `oss://`."""
    options: str = Field(default="", pattern=r"^[A-Za-z0-9_=.:/,-]*$")
    """More mount options, separated by commas: `vers=3,nolock`; they come last, so they win."""
    within: DurationS = DurationS(60)
    """How long a mount may take before it is given up."""

    def fetched_by(self, nodes: int) -> int:
        """How many of so many nodes have it from its source; the others have it from them."""
        return 1 if self.share == "head" else nodes


class Checkpoint(Section):
    """Where the run keeps what it needs to go on later."""

    path: PurePosixPath
    """Directory below the work directory."""
    to: str | None = None
    """Where the head copies it while the run goes on, for instance `s3://bucket/runs/{run}`. Without `{run}`, what
    lies there is where the next run begins."""
    resume: str | None = Field(default=None, pattern=r"^s3://\S+$")
    """Where the run begins: `s3://bucket/runs/OLD-RUN`; what lies there is put into `path` before the ranks start."""
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"] = "SIGTERM"
    """Signal that asks the ranks to write one."""
    grace: DurationS = DurationS(90)
    """How long the ranks may take for it, for instance `90s`."""
