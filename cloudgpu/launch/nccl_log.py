"""Environment variables that make NCCL write which network it uses, for the agent to read.

NCCL falls back from EFA to TCP without an error, so only its own log shows what a run really used.
"""

from collections.abc import Mapping
from typing import Final

from cloudgpu.launch.containers import INSIDE
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext
from cloudgpu.recipe.schema import Recipe

LOG_VARIABLES: Final = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_FILE: Final = "nccl/%h-%p.log"
"""One file per process: NCCL replaces `%h` by the host's name and `%p` by the process ID."""


def watches_network(inventory: Inventory) -> bool:
    """Return True if the run has traffic between nodes that NCCL may carry."""
    return len(inventory.nodes) > 1 and all(node.gpus > 0 for node in inventory.nodes)


def sets_own_log(recipe: Recipe) -> tuple[str, ...]:
    """Return the variables of NCCL's log that the recipe sets itself."""
    return tuple(name for name in LOG_VARIABLES if name in recipe.environment.env or name in recipe.environment.secrets)


def nccl_log_variables(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> Mapping[str, str]:
    """Return the variables of NCCL's log.

    If the recipe sets one of them, all are left to the recipe, so that NCCL's lines appear where its author wants them.
    The agent then finds them only in the ranks' own output.
    """
    if not watches_network(inventory) or not ctx.run_dir or sets_own_log(recipe):
        return {}
    folder = INSIDE if ctx.enter else ctx.run_dir
    # INFO, because NCCL names its network at no other level. Both subsystems are silent once the ranks are connected.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{folder}/{_FILE}"}
