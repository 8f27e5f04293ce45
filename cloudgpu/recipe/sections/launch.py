"""The `launch` section of a recipe: launcher, command and ranks."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from cloudgpu.recipe.sections.section import Section
from cloudgpu.recipe.sections.service import Service, SideService

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
