"""The recipe schema. The docstring below each field is its documentation in the JSON Schema and the reference.

Unknown keys are errors because a mistyped key that is silently ignored can cost money.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StringConstraints

from cloudgpu.recipe.field_types import DurationS, MemoryGib, Name, PositiveUsd, Section, SizeGib, VolumeGib
from cloudgpu.recipe.launch_sections import (
    Container,
    Environment,
    Launch,
    LauncherName,
    Metric,
    PythonEnvironment,
    Reference,
    Work,
)
from cloudgpu.recipe.problem import FieldPath, Problem
from cloudgpu.recipe.sources import Deployment, StorageKind
from cloudgpu.settings.tags import check_tags

__all__ = [
    "Budget",
    "Checkpoint",
    "Container",
    "Data",
    "Environment",
    "Launch",
    "LauncherName",
    "Make",
    "Metric",
    "Prefer",
    "PythonEnvironment",
    "Recipe",
    "Reference",
    "Rehearsal",
    "Resources",
    "Scalar",
    "Storage",
    "Work",
]

StorageName = Annotated[str, StringConstraints(pattern=r"^[a-z](?:[a-z0-9-]{0,37}[a-z0-9])?$")]
Prefer = Literal["order", "price", "speed", "region", "spot"]
Scalar = str | int | float | bool | None
SectionClass = type[BaseModel]


class Resources(Section):
    """The nodes that the run needs. Exactly one of `gpu`, `any_of` and `instance_type` is required."""

    gpu: str | None = None
    """GPU model and count per node, for example `V100:8`, or `V100-32GB:8` to require a memory size."""
    any_of: tuple[str, ...] = ()
    """Several GPUs (`V100:8`) or instance types (`p3dn.24xlarge`), in order of preference."""
    instance_type: str | None = None
    """One instance type, for example `p3dn.24xlarge`."""
    gpu_memory: MemoryGib | None = None
    """Minimum memory per GPU, for example `24GiB` or `24GB`; instance types with less are excluded."""
    nodes: int = Field(default=1, ge=1, le=1000, strict=True)
    """Number of identical nodes. They are launched together or not at all."""
    market: Literal["on-demand", "spot", "reservation", "capacity-block"] = "on-demand"
    """Purchase option for the nodes: `on-demand`; `spot` capacity, which AWS may reclaim; a Capacity `reservation`; or
    a `capacity-block` that you have bought for a period."""
    reservation: str | None = Field(default=None, pattern=r"^cr-[0-9a-f]{8,17}$")
    """ID of the Capacity Reservation or Capacity Block to launch into; required with the markets `reservation` and
    `capacity-block`."""
    regions: tuple[str, ...] = ()
    """Regions in order of preference. Default: the default region from the settings."""
    zones: tuple[str, ...] = ()
    """Availability zones to use, for example `us-east-1c`. Default: all zones that offer the instance type."""
    prefer: Prefer = "order"
    """Preference between candidates: hardware, regions and zones in the given `order`, the lowest hourly `price` of the
    cluster, the highest peak `speed` per node, the first `region` with any of the hardware, or `spot` capacity before
    on-demand (with `market: on-demand`). Ties keep the given order. Candidates that recently had no capacity come
    last."""
    pool: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    """With `--on ssh`: inventory pool whose hosts may be used. Default: all hosts in the inventory."""
    network: Literal["efa", "tcp", "auto"] = "auto"
    """`efa` requires EFA, and the run fails if NCCL reports another network; `tcp` never uses EFA; `auto` uses EFA
    between nodes if the instance type supports it."""
    disk: VolumeGib = SizeGib(200)
    """Size of the root disk of every node, for example `300GiB`; at most `64TiB`."""
    image: str | None = None
    """Machine image: `ami-...` or the name of an SSM parameter. Default: an image that supports the GPU."""
    driver: Annotated[int, Field(strict=True, ge=300, le=999)] | None = None
    """NVIDIA driver branch that the bootstrap installs on plain Ubuntu, for example `580`. Default: a branch that
    supports the GPU."""


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


def _version(value: object) -> object:
    # In Python, `True` and `1.0` equal 1, so `Literal[1]` alone would accept both.
    return value if isinstance(value, int) and not isinstance(value, bool) else str(value).lower()


class Budget(Section):
    """The spending limit and the lifetime of the cluster."""

    max_usd: PositiveUsd | None = None
    """Maximum cost in USD. A plan whose worst case exceeds this amount is rejected."""
    expiry: DurationS = DurationS(8 * 3600)
    """Time until the nodes terminate themselves, for example `8h`; at most `366d`."""
    idle: DurationS | None = None
    """Time without a run after which the cluster is deleted, for example `20m`. Not implemented yet."""


class Rehearsal(Section):
    """Overrides for a rehearsal of the same script on a smaller scale. Fields that are not set keep their values."""

    environment: Environment | None = None
    """Replacement for `environment`."""
    command: str | None = None
    """Replacement for `launch.command` or `launch.run`."""
    setup: str | None = None
    """Replacement for `setup`; an empty text removes it."""
    run: str | None = None
    """Replacement for `launch.run` or `launch.command`."""
    ranks_per_node: int | None = Field(default=None, ge=1, le=64, strict=True)
    """Replacement for `launch.ranks_per_node`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Replacements for individual parameters."""
    objects: dict[str, str] = Field(default_factory=dict)
    """Local replacements for data sources, for example `s3://bucket/prefix/: sample`; the paths are relative to the
    recipe. Replacements for S3 sources are uploaded to the rehearsal's S3 before the run; replacements for other
    sources, such as `nfs://host/sets`, are copied to the nodes."""


class Recipe(Section):
    """A complete description of a run."""

    schema_version: Annotated[Literal[1], BeforeValidator(_version)] = Field(alias="schema")
    """Version of this format: 1."""
    name: Name
    """Short name of lowercase letters, digits and dashes."""
    description: str = ""
    """Description in one sentence."""
    resources: Resources
    """Nodes: hardware, market and location."""
    environment: Environment = Environment()
    """Environment of the ranks."""
    data: tuple[Data, ...] = ()
    """Datasets that are copied to the nodes or mounted."""
    storage: tuple[Storage, ...] = ()
    """Storage that every node mounts."""
    workdir: str | None = "."
    """Directory in the recipe's folder that is copied to every node; null for none. See `--allow-outside`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Parameters with their defaults; `--set name=value` changes them."""
    setup: str = ""
    """Shell script that runs once on every node before the ranks start, with `bash -eo pipefail` in a copy of the work
    directory, for example to compile an extension. Runs get the files that the script creates. The script runs again
    on a node if the script, `environment` or a file mentioned in the script has changed. With `environment.container`,
    the script runs in the image, and the ranks run in the resulting local image."""
    launch: Launch
    """Launcher, command and number of ranks."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Metrics to read from the logs."""
    work: Work | None = None
    """Amount of work, used by the plan to estimate time and cost."""
    outputs: tuple[str, ...] = ()
    """Files and directories below the work directory to download when the run finishes; globs are allowed. The head
    node's outputs are stored directly in the run's `outputs` directory, the outputs of node 1 in `node-1/`. In a run on
    several nodes, outputs of the head node that are named like such a directory are stored in `node-0/`."""
    outputs_to: str | None = None
    """S3 URL to which every node also uploads its `outputs` when the run finishes, for example
    `s3://bucket/results/{run}`. The names below this URL are those in the run's `outputs` directory."""
    checkpoint: Checkpoint | None = None
    """Checkpoint directory, upload and resume."""
    tags: Annotated[dict[str, str], AfterValidator(check_tags)] = Field(default_factory=dict)
    """Your own tags for every resource of the run's cluster and its storage, for example `CostCenter: "42"`. They are
    added to the tags from the settings, and take precedence over those with the same key."""
    budget: Budget = Budget()
    """Spending limit and expiry."""
    rehearsal: Rehearsal | None = None
    """Overrides for a rehearsal."""


@dataclass(frozen=True)
class RecipeRule:
    """A validation rule that the schema cannot express.

    Attributes:
        sections: The sections of the recipe that the rule reads.
        find: Function that yields the problems.
    """

    sections: frozenset[str]
    find: Callable[[Recipe], Iterator[Problem]]


def rule(*sections: str) -> Callable[[Callable[[Recipe], Iterator[Problem]]], RecipeRule]:
    """Turn a function into a rule that reads these sections. `rules.py` collects the rules of its modules."""
    return lambda find: RecipeRule(frozenset(sections), find)


def to_plain_values(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain values keyed by the field names in the file, omitting fields set to their defaults."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"schema": recipe.schema_version, **values}


def digest(recipe: Recipe) -> str:
    """Return the SHA-256 digest of a resolved recipe in hexadecimal.

    The order of mappings is ignored, and so are fields with their default value. A later version can therefore add
    optional fields without changing existing digests.
    """
    canonical = json.dumps(
        to_plain_values(recipe), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def names_at(path: FieldPath) -> list[str]:
    """Return the field names of the section at a path, as written in the file; empty if the path is not a section."""
    section = section_at(path)
    return [] if section is None else [info.alias or name for name, info in section.model_fields.items()]


def section_at(path: FieldPath) -> SectionClass | None:
    """Return the section at a path; None if the path is not a section."""
    return next((option for option in alternatives(annotation_at(path)) if _is_section(option)), None)


def section_within(annotation: Any) -> SectionClass | None:  # noqa: ANN401 - any annotation
    """Return the section that a field contains directly, in a list or in a mapping; None if there is none."""
    for option in alternatives(annotation):
        if _is_section(option):
            section: SectionClass = option
            return section
        if get_origin(option) in (tuple, dict):
            return section_within(get_args(option)[1 if get_origin(option) is dict else 0])
    return None


def annotation_at(path: FieldPath) -> Any:  # noqa: ANN401 - any annotation
    """Return the annotation of the field at a path; None if there is no such field."""
    annotation: Any = Recipe
    for part in path:
        annotation = _below(annotation, part)
    return annotation


def alternatives(annotation: Any) -> Iterator[Any]:  # noqa: ANN401 - any annotation
    """Yield the alternatives of a union, flattened and without constraints."""
    if get_origin(annotation) is Annotated:
        yield from alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for option in get_args(annotation):
            yield from alternatives(option)
    else:
        yield annotation


def _below(annotation: Any, part: str | int) -> Any:  # noqa: ANN401 - any annotation
    for option in alternatives(annotation):
        if _is_section(option):
            return _field(option, part)
        if get_origin(option) is tuple and isinstance(part, int):
            return get_args(option)[0]
        if get_origin(option) is dict:
            return get_args(option)[1]
    return None


def _field(section: SectionClass, written: str | int) -> Any:  # noqa: ANN401 - any annotation
    """Return the annotation of a field by its name in the file."""
    for name, info in section.model_fields.items():
        if written == (info.alias or name):
            return info.annotation
    return None


def _is_section(option: object) -> bool:
    return isinstance(option, type) and issubclass(option, BaseModel)
