"""The recipe file, field by field. The docstring under each field is its documentation everywhere.

Unknown keys are errors: a mistyped key that is silently ignored costs money.
"""

from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.section import Name, Section
from cloudgpu.recipe.storage import Storage
from cloudgpu.recipe.units import DurationS, SizeGib

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Scalar = str | int | float | bool | None
Prefer = Literal["order", "price", "speed", "region", "spot"]
LauncherName = Literal["torchrun"]


class Resources(Section):
    """On what the run needs to run. Name either GPUs or instance types."""

    gpu: str | None = None
    """GPU and how many a node, for instance `V100:8`, or `V100-32GB:8` where the memory of each matters."""
    any_of: tuple[str, ...] = ()
    """Several GPUs (`V100:8`) or instance types (`p3dn.24xlarge`), in the order to try them."""
    instance_type: str | None = None
    """One instance type, for instance `p3dn.24xlarge`."""
    gpu_memory: SizeGib | None = None
    """Memory that the run needs on each GPU, for instance `24GiB`; types with less are left out."""
    nodes: int = Field(default=1, ge=1, le=1000, strict=True)
    """How many identical nodes, launched together or not at all."""
    market: Literal["on-demand", "spot", "reservation", "capacity-block"] = "on-demand"
    """How the nodes are bought: at the price of the hour, as spare capacity that AWS may take back, or in capacity
    that you have reserved (`reservation`) or bought for a time (`capacity-block`)."""
    reservation: str | None = Field(default=None, pattern=r"^cr-[0-9a-f]{8,17}$")
    """Capacity reservation or Capacity Block to launch into, for the two markets that need one."""
    regions: tuple[str, ...] = ()
    """Regions in the order to try them; empty means the default region of the settings."""
    zones: tuple[str, ...] = ()
    """Only these zones, for instance `us-east-1c`; empty means all that offer the type."""
    prefer: Prefer = "order"
    """What is tried first: hardware, regions and zones in the `order` given, the lowest `price` of the whole cluster's
    hour, the highest peak `speed` of a node, the first `region` with any of the hardware, or `spot` capacity before
    on-demand (with `market: on-demand`). Equals stay in order, and what was refused a moment ago comes last."""
    network: Literal["efa", "tcp", "auto"] = "auto"
    """`efa` insists on RDMA networking, `tcp` never uses it, `auto` uses it where the type has it."""
    disk: SizeGib = SizeGib(200)
    """Root disk of every node, for instance `300GiB`."""
    image: str | None = None
    """Machine image: `ami-...` or the name of an SSM parameter; empty means the one that suits the GPU."""
    driver: Annotated[int, Field(strict=True, ge=300, le=999)] | None = None
    """Branch of NVIDIA's driver that the bootstrap installs on plain Ubuntu, for instance `580`; empty means the one
    that suits the GPU."""


class Container(Section):
    """A container image that every rank runs in."""

    image: str
    """Image with tag or digest, for instance `nvcr.io/nvidia/pytorch:24.12-py3`."""
    login: str | None = None
    """Name of the registry login, for instance `$oauthtoken`. Its secret is never written here: name the variable of
    your environment that holds it under `environment.secrets`."""
    shm: SizeGib = SizeGib(16)
    """Shared memory of the container."""


class PythonEnvironment(Section):
    """A Python environment on the bare node."""

    version: str | None = Field(default=None, pattern=r"^3\.\d+$")
    """Python version, for instance `3.11`; empty means the node's own."""
    requirements: tuple[str, ...] = ()
    """Requirements as pip reads them, for instance `torch>=2.6`."""
    torch_backend: str | None = Field(default=None, pattern=r"^cu\d{2,3}$")
    """CUDA build of PyTorch, for instance `cu126`, which uv takes from PyTorch's own index; empty means the default
    one. A rehearsal, which has no GPU, does without it."""


class Environment(Section):
    """What a rank finds around it: a container or a Python environment, never both."""

    container: Container | None = None
    """Run in this container."""
    python: PythonEnvironment | None = None
    """Run on the bare node with this Python."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Environment variables of every rank."""
    secrets: tuple[EnvName, ...] = ()
    """Names of environment variables whose values come from the caller's environment and are never stored."""


class Data(Section):
    """One dataset."""

    name: Name
    """How the rehearsal stanza and messages call it."""
    source: str = Field(alias="from")
    """Where it is: `s3://bucket/prefix/`, `s3://bucket/key`, or a path relative to the recipe."""
    to: PurePosixPath
    """Absolute directory on every node."""
    mode: Literal["copy", "mount"] = "copy"
    """Copy before the run, or mount."""
    manifest: str | None = None
    """File beside the recipe in `sha256sum` form; what is staged must match it."""


class Launch(Section):
    """How the ranks are started."""

    launcher: LauncherName = Field(alias="with")
    """The launcher: which environment variables the ranks find and what starts them."""
    command: str
    """What every rank runs, without a shell; `{name}` is a parameter; `{data.name}`, `{run}`, `{outputs}` and
    `{checkpoint}` are filled in too; `{{` is a brace."""
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=64)] | Literal["gpus"] = "gpus"
    """Ranks on each node; `gpus` is one a GPU."""
    global_batch: Annotated[int, Field(strict=True, ge=1)] | str | None = None
    """Samples in one step over all ranks together, as a number or by a parameter: `"{batch}"`. The plan holds it
    against the number of ranks; nothing else is done with it."""


class Reference(Section):
    """The figure to compare with."""

    value: float
    """The figure, in the metric's unit."""
    on: str
    """The hardware it was reached on."""
    source: str
    """Who published it, and where."""


class Metric(Section):
    """A figure read from the ranks' log lines."""

    pattern: str
    """Regular expression with a group named `value`; the last match counts."""
    unit: str = ""
    """Unit of the value, for instance `img/s`."""
    better: Literal["higher", "lower"]
    """Which direction is better."""
    reference: Reference | None = None
    """The figure to compare with."""
    at_least: float | None = None
    """The run fails when the last value is below this."""


class Work(Section):
    """How much there is to do, for the plan to tell how long it takes and what it costs at the reference rate."""

    metric: str
    """The metric whose reference is the rate; its unit ends with `/s`, for instance `img/s`."""
    amount: Decimal = Field(gt=0)
    """How much of the metric's unit without `/s`: 128000000 images are a hundred epochs of ImageNet."""


class Checkpoint(Section):
    """Where the run keeps what it needs to go on later."""

    path: PurePosixPath
    """Directory below the work directory."""
    to: str | None = None
    """Where it is copied, for instance `s3://bucket/runs/{run}`."""
    signal: Literal["SIGUSR1", "SIGUSR2", "SIGTERM", "SIGINT"] = "SIGTERM"
    """Signal that asks the ranks to write one."""
    grace: DurationS = DurationS(90)
    """How long the ranks may take for it, for instance `90s`."""


class Budget(Section):
    """What may be spent, and when everything ends whatever happens."""

    max_usd: Decimal | None = Field(default=None, gt=0)
    """The plan is refused when its worst case is above this, in USD."""
    expiry: DurationS = DurationS(8 * 3600)
    """After this long the nodes end themselves, for instance `8h`."""
    idle: DurationS | None = None
    """End the cluster after this long without a run, for instance `20m`."""


class Rehearsal(Section):
    """What differs when the run is rehearsed: the same script, smaller. Absent fields stay as they are."""

    environment: Environment | None = None
    """Replaces `environment`."""
    command: str | None = None
    """Replaces `launch.command`."""
    ranks_per_node: int | None = Field(default=None, ge=1, le=64, strict=True)
    """Replaces `launch.ranks_per_node`."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Overrides single parameters."""
    objects: dict[str, str] = Field(default_factory=dict)
    """Files put in the rehearsal's S3 before the run: `s3://bucket/prefix/` -> path relative to the recipe."""


class Recipe(Section):
    """A run, complete."""

    schema_version: Literal[1] = Field(alias="schema")
    """Version of this format: 1."""
    name: Name
    """Short name: lower case letters, digits and dashes."""
    description: str = ""
    """One sentence."""
    resources: Resources
    """On what."""
    environment: Environment = Environment()
    """Around each rank."""
    data: tuple[Data, ...] = ()
    """Datasets."""
    storage: tuple[Storage, ...] = ()
    """Storage that every node mounts."""
    workdir: str | None = "."
    """Directory, relative to the recipe, sent to every node; null for none."""
    params: dict[str, Scalar] = Field(default_factory=dict)
    """Parameters with their defaults; `--set name=value` changes them."""
    launch: Launch
    """How."""
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """Figures to read from the logs."""
    work: Work | None = None
    """How much there is to do."""
    outputs: tuple[str, ...] = ()
    """Files and directories below the work directory, brought back at the end; globs allowed."""
    checkpoint: Checkpoint | None = None
    """Checkpoints."""
    budget: Budget = Budget()
    """Money and time."""
    rehearsal: Rehearsal | None = None
    """What differs when rehearsed."""
