"""Environment variables that configure how a node's ranks communicate through NCCL and Gloo.

The variables specific to instance types are defined in `catalog/communication.py`, so that a plan can show them.
"""

from collections.abc import Mapping

from cloudgpu.catalog.communication import has_efa, rank_variables
from cloudgpu.launch.inventory import Node
from cloudgpu.recipe.schema import Recipe


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
