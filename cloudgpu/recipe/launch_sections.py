"""The `launch`, `environment`, `metrics` and `work` sections of a recipe, and the services in `launch`."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from cloudgpu.recipe.field_types import Amount, DurationS, Figure, Name, Section, SizeGib

Port = Annotated[int, Field(strict=True, ge=1, le=65535)]
PathOnPort = Annotated[str, StringConstraints(pattern=r"^/[^\s]*$")]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
IMAGE: Final = (
    r"^(?:[A-Za-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)
"""A Docker image reference: registry, path, tag and digest."""
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LauncherName = Literal["torchrun", "mpirun", "deepspeed", "kvstore", "tf-config", "each-node", "head-only", "service"]
HEAD_LAUNCHERS: Final = frozenset({"head-only", "service"})
"""Launchers that start a single process, on the head node. That process must start any processes on other nodes."""
RANK_PER_GPU_LAUNCHERS: Final = frozenset({"torchrun", "mpirun", "deepspeed"})
"""Launchers that default to one rank per GPU."""
RANK_PER_NODE_LAUNCHERS: Final = frozenset({*HEAD_LAUNCHERS, "each-node"})
"""Launchers that start at most one rank per node."""
LOCAL_KINDS: Final = frozenset({"local", "device", "nccl"})
"""MXNet KVStore kinds that work within one process."""
DIST_KINDS: Final = frozenset(
    {
        "dist_sync",
        "dist_async",
        "dist_sync_device",
        "dist_device_sync",
        "dist_async_device",
        "dist_device_async",
    }
)
"""MXNet KVStore kinds that work across processes, through ps-lite servers."""


class Reference(Section):
    """A published value of a metric, for comparison."""

    value: Figure
    """Value in the metric's unit."""
    on: str
    """Hardware on which the value was measured."""
    source: str
    """Publication that reports the value: author and URL."""


class Metric(Section):
    """A metric that is read from the ranks' log lines."""

    pattern: str
    """Regular expression with a group named `value`, matched against every line; `docs/guides/metrics.md` lists
    patterns for common frameworks."""
    take: Literal["last", "mean", "median", "max", "min"] = "last"
    """Aggregation of the values that one rank prints."""
    skip: int = Field(default=0, ge=0, strict=True)
    """Number of values to ignore at the start of every rank's output, for example during warm-up."""
    over_ranks: Literal["first", "sum", "mean", "max", "min"] = "first"
    """Aggregation over ranks: `first` uses only the first rank that reports a value, for metrics that already cover all
    ranks; the other options combine the values of all ranks."""
    unit: str = ""
    """Unit of the value, for example `img/s`."""
    better: Literal["higher", "lower"]
    """Whether higher or lower values are better."""
    reference: Reference | None = None
    """Published value for comparison."""
    at_least: Figure | None = None
    """Minimum value; the run fails if the metric is lower. Usually with `better: higher`."""
    at_most: Figure | None = None
    """Maximum value; the run fails if the metric is higher. Usually with `better: lower`."""


class Work(Section):
    """The amount of work, from which the plan estimates time and cost at the reference rate."""

    metric: str
    """Metric whose reference value is the rate. The metric's unit must end with `/s`, for example `img/s`."""
    amount: Amount
    """Amount of work in the metric's unit without `/s`, for example 128000000 images for a hundred epochs of
    ImageNet."""


class Ready(Section):
    """The readiness check of a service."""

    http: PathOnPort | None = None
    """HTTP path to request, for example `/api`. Default: a TCP connection to the port is enough."""
    status: Annotated[int, Field(strict=True, ge=100, le=599)] | None = None
    """HTTP status that indicates that the service is ready. Default: any status below 400."""
    within: DurationS = DurationS(180)
    """Time limit for the service to become ready, for example `2m`."""


class Endpoint(Section):
    """The port, readiness check and page of a service."""

    port: Port
    """TCP port on the head node's loopback interface. The command can use the port as `{service.port}` and the address
    as `{service.address}`."""
    ready: Ready = Ready()
    """Readiness check of the service."""
    page: str = Field(default="/", pattern=r"^/\S*$")
    """Path of the page to open in a browser; `{token}` is replaced by the service's token."""
    token: Variable | None = None
    """Environment variable that receives a secret generated for this run, for example `JUPYTER_TOKEN`. The secret is
    shown together with the address and is never written to logs, arguments or state."""


class Service(Endpoint):
    """The main service of a run with `with: service`."""

    stays: Literal["expiry", "command"] = "expiry"
    """Lifetime of the service. With `expiry`, the service runs until the cluster expires or `cancel` stops it; Ctrl-C
    asks whether to stop it. With `command`, the service stops when the `train` command exits."""


class SideService(Endpoint):
    """A service on the head node next to the ranks, for example TensorBoard. It stops when the run finishes."""

    name: Name
    """Name of the service in messages."""
    command: str
    """Command of the service, run without a shell, with the placeholders of `launch.command`. GPUs are
    hidden from the service."""


class Container(Section):
    """The container image that the ranks run in. Every node runs one container per run."""

    image: str = Field(pattern=IMAGE)
    """Image with tag or digest, for example `nvcr.io/nvidia/pytorch:24.12-py3`. A tag is resolved once, so every node
    runs the same image."""
    login: str | None = None
    """User name for the registry, for example `$oauthtoken` for NGC. Do not put the secret here; see `password`. ECR
    does not need a login: cloudgpu requests a token with your AWS credentials."""
    password: EnvName | None = None
    """Name of the environment variable that contains the password or token for `login`. Default: the first entry of
    `environment.secrets`. A variable that is named only here is used for the registry and is not passed to the
    ranks."""
    pull: Literal["missing", "always", "never"] = "missing"
    """Pull policy: `missing` pulls the image if a node does not have it, `always` resolves the tag again and pulls the
    image, `never` uses only images that the nodes already have."""
    share: Literal["each", "head"] = "each"
    """With `each`, every node pulls the image; with `head`, only the first node pulls it, and the image is then copied
    from node to node. `head` reduces the load on a slow or rate-limited registry, but temporarily needs additional disk
    space: twice the image's size."""
    user: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$")
    """User and group inside the container, for example `1000:1000`. Default: the image's user."""
    shm: SizeGib | None = None
    """Size of the container's `/dev/shm`, for example `16GiB`. Default: the node's `/dev/shm`."""
    memlock: SizeGib | Literal["unlimited"] | None = "unlimited"
    """Limit on locked memory, which RDMA needs, for example `16GiB` or `unlimited`. null keeps the container engine's
    default, for engines that are not allowed to raise the limit."""
    stack_mib: int | None = Field(default=64, ge=1, le=4096, strict=True)
    """Stack size limit in MiB; null keeps the container engine's default."""
    flags: tuple[str, ...] = ()
    """Additional `docker run` options, each as a single word, for example `--cap-add=SYS_PTRACE`."""


class PythonEnvironment(Section):
    """A Python environment on the node, without a container."""

    version: str | None = Field(default=None, pattern=r"^3\.[0-9]{1,3}$")
    """Python version, for example `3.11`. Default: the node's Python."""
    requirements: tuple[str, ...] = ()
    """Requirements in pip syntax, for example `torch>=2.6`, or `-r requirements.txt` for a file in the work
    directory. Install packages that are in the work directory, such as `-e ./pkg`, in `setup` instead."""
    torch_backend: str | None = Field(default=None, pattern=r"^cu[0-9]{2,3}$")
    """CUDA build of PyTorch, for example `cu126`, installed from PyTorch's package index. Default: PyTorch's default
    build. Ignored in a rehearsal, which has no GPU."""


class Environment(Section):
    """The environment of every rank: a container or a Python environment, not both."""

    container: Container | None = None
    """Container in which the ranks run."""
    python: PythonEnvironment | None = None
    """Python environment in which the ranks run directly on the node."""
    env: dict[EnvName, str] = Field(default_factory=dict)
    """Environment variables of every rank."""
    secrets: tuple[EnvName, ...] = ()
    """Names of environment variables to pass to the ranks. Their values are taken from your environment or `--secret`,
    never written to a disk, and masked in the output of the ranks."""


class Launch(Section):
    """The launcher, command and number of ranks."""

    launcher: LauncherName = Field(alias="with")
    """Launcher, which starts the ranks and sets their environment variables."""
    command: str = ""
    """Command of every rank, run without a shell; either `command` or `run` is required. Placeholders: `{NAME}` for a
    parameter, `{data.NAME}`, `{storage.NAME}`, `{run}`, `{outputs}`, `{checkpoint}`, `{node_rank}`, `{num_nodes}`,
    `{head_address}`, `{master_port}`, `{hostfile}` with `mpirun` and `deepspeed`, and `{service.port}` and
    `{service.address}` with `service`. Write `{{` and `}}` for literal braces."""
    run: str = ""
    """Shell script of every rank, instead of `command`. Runs with `bash -eo pipefail` in the work directory.
    Placeholders are not substituted; use environment variables such as `$CLOUDGPU_PARAM_EPOCHS`,
    `$CLOUDGPU_DATA_IMAGES` and `$CLOUDGPU_STORAGE_SCRATCH`."""
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=64)] | Literal["gpus"] | None = None
    """Ranks on each node; `gpus` means one per GPU. Default: `gpus` with `torchrun`, `mpirun` and
    `deepspeed`, otherwise 1."""
    kvstore: str | None = None
    """With `kvstore`: the KVStore kind that the command uses, or the placeholder of the parameter that contains the
    kind, for example `"{kvstore}"`. `local`, `device` and `nccl` work on one node; `dist_sync`, `dist_async` and
    `dist_sync_device` work on any number of nodes."""
    servers_per_node: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    """Parameter servers on each node. Default: 1 with `kvstore`; none with `tf-config`, for strategies without
    parameter servers such as `MultiWorkerMirroredStrategy`."""
    global_batch: Annotated[int, Field(strict=True, ge=1)] | str | None = None
    """Samples per step over all ranks: a number, or the placeholder of a parameter, for example `"{batch}"`. The plan
    uses this field only to check that the ranks can share the batch evenly."""
    service: Service | None = None
    """With `service`: the port, readiness check and page of the service."""
    beside: tuple[SideService, ...] = ()
    """Services that run on the head node next to the ranks, for example TensorBoard."""

    @property
    def text(self) -> str:
        """The command or script of every rank, as written."""
        return self.run or self.command

    @property
    def ranks(self) -> int | Literal["gpus"]:
        """Ranks on each node that runs ranks: the recipe's value, or the launcher's default."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        return "gpus" if self.launcher in RANK_PER_GPU_LAUNCHERS else 1


def kvstore_kind(launch: Launch, params: Mapping[str, object]) -> str:
    """Return the KVStore kind with its parameter filled in; empty if the recipe does not set one."""
    kind = launch.kvstore or ""
    if kind.startswith("{") and kind.endswith("}"):
        return str(params.get(kind[1:-1], ""))
    return kind
