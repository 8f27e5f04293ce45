"""The `launch` section: how the ranks are started."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from cloudgpu.recipe.section import Section
from cloudgpu.recipe.service import Service, SideService

LauncherName = Literal["torchrun", "mpirun", "deepspeed", "kvstore", "tf-config", "each-node", "head-only", "service"]

ON_THE_HEAD: Final = frozenset({"head-only", "service"})
"""Launchers of one process on the head; the other nodes are there, and run what that process starts there, if any."""
ONE_A_GPU: Final = frozenset({"torchrun", "mpirun", "deepspeed"})
"""Launchers whose ranks have a GPU each, unless the recipe says otherwise."""
ONE_A_NODE: Final = frozenset({*ON_THE_HEAD, "each-node"})
"""Launchers that never start two ranks on a node."""
LOCAL_KINDS: Final = frozenset({"local", "device", "nccl"})
"""Kinds of MXNet's KVStore within one process."""
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
"""Kinds of MXNet's KVStore between processes, through ps-lite's servers."""


class Launch(Section):
    """How the ranks are started."""

    launcher: LauncherName = Field(alias="with")
    """The launcher: which environment variables the ranks find and what starts them."""
    command: str
    """What every rank runs, without a shell; `{name}` is a parameter; `{data.name}`, `{run}`, `{outputs}`,
    `{checkpoint}`, `{node_rank}`, `{num_nodes}`, `{head_address}` and `{master_port}` are filled in too, and
    `{hostfile}` with `mpirun` and `deepspeed`; `{{` is a brace."""
    ranks_per_node: Annotated[int, Field(strict=True, ge=1, le=64)] | Literal["gpus"] | None = None
    """Ranks on each node; `gpus` is one a GPU, which `torchrun`, `mpirun` and `deepspeed` take by themselves. All
    others take one a node."""
    kvstore: str | None = None
    """With `kvstore`: the kind that the command is told, or the parameter that says so, `"{kvstore}"`: `local`,
    `device` or `nccl` on one node, `dist_sync`, `dist_async`, `dist_sync_device` on any number."""
    servers_per_node: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    """Parameter servers on each node: 1 with `kvstore`; none with `tf-config`, whose workers then mirror their
    variables."""
    global_batch: Annotated[int, Field(strict=True, ge=1)] | str | None = None
    """Samples in one step over all ranks together, as a number or by a parameter: `"{batch}"`. The plan holds it
    against the number of ranks; nothing else is done with it."""
    service: Service | None = None
    """With `service`: where the command answers."""
    beside: tuple[SideService, ...] = ()
    """Services on the head beside the ranks, for instance TensorBoard."""

    @property
    def ranks(self) -> int | Literal["gpus"]:
        """Ranks on a node that has any, as the recipe says or as the launcher has it."""
        if self.ranks_per_node is not None:
            return self.ranks_per_node
        return "gpus" if self.launcher in ONE_A_GPU else 1


def kvstore_kind(launch: Launch, params: Mapping[str, object]) -> str:
    """The kind of KVStore, its parameter filled in; empty where the recipe names none."""
    kind = launch.kvstore or ""
    if kind.startswith("{") and kind.endswith("}"):
        return str(params.get(kind[1:-1], ""))
    return kind
