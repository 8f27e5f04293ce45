"""Registry of launchers by name."""

from collections.abc import Callable, Mapping

from cloudgpu.errors import UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.launchers.deepspeed import deepspeed
from cloudgpu.launch.launchers.kvstore import kvstore
from cloudgpu.launch.launchers.mpirun import mpirun
from cloudgpu.launch.launchers.plain_commands import each_node, head_only, service
from cloudgpu.launch.launchers.tf_config import tf_config
from cloudgpu.launch.launchers.torchrun import torchrun
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.recipe.name_suggestions import suggestion
from cloudgpu.recipe.schema import Recipe

Launcher = Callable[[Recipe, Inventory, LaunchContext], tuple[NodeLaunch, ...]]

LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": torchrun,
    "mpirun": mpirun,
    "deepspeed": deepspeed,
    "kvstore": kvstore,
    "tf-config": tf_config,
    "each-node": each_node,
    "head-only": head_only,
    "service": service,
}


def launcher(name: str) -> Launcher:
    """Return the launcher with this name."""
    if name not in LAUNCHERS:
        known = suggestion(name, LAUNCHERS) or f"; known: {', '.join(LAUNCHERS)}"
        raise UsageError(f'unknown launcher "{name}"{known}', hint="see `cloudgpu recipe schema`")
    return LAUNCHERS[name]


def launch(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return every rank's command and environment, as computed by the recipe's launcher."""
    return launcher(recipe.launch.launcher)(recipe, inventory, ctx)
