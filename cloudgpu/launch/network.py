"""Environment variables that configure NCCL and Gloo, and make NCCL log which network it uses.

NCCL falls back from EFA to TCP without an error, so only its own log shows what a run really used.

The variables specific to instance types are defined in `catalog/communication.py`, so that a plan can show them.
"""

from collections.abc import Mapping
from typing import Final

from cloudgpu.catalog.communication import has_efa, rank_variables
from cloudgpu.launch.containers import INSIDE
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchContext
from cloudgpu.recipe.schema import Recipe

LOG_VARIABLES: Final = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_FILE: Final = "nccl/%h-%p.log"
"""One file per process: NCCL replaces `%h` by the host's name and `%p` by the process ID."""


def network_environment(recipe: Recipe, node: Node, nodes: int) -> Mapping[str, str]:
    """Return the variables for the ranks of a node. The recipe's own variables take precedence."""
    if node.simulated:
        # Every simulated node is this machine, so Gloo would resolve the host name to an address that no node uses.
        return {"GLOO_SOCKET_IFNAME": "lo"} if node.private_address.startswith("127.") else {}
    if node.interface:
        # The inventory states which network the hosts share.
        return {"NCCL_SOCKET_IFNAME": f"={node.interface}", "GLOO_SOCKET_IFNAME": node.interface} if nodes > 1 else {}
    variables = rank_variables(node.instance_type, nodes, recipe.resources.network)
    return {variable.name: variable.value for variable in variables}


def uses_efa(recipe: Recipe, node: Node) -> bool:
    """Return True if the node's ranks communicate through EFA."""
    return has_efa(node.instance_type) and recipe.resources.network != "tcp"


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
