"""Communication settings of a node's ranks: what NCCL and gloo need where they would guess wrong.

What a type of node needs stands in `catalog/communication.py`, so that a plan can show it; here is what a node needs.
"""

from collections.abc import Mapping

from cloudgpu.catalog.communication import has_efa, settings
from cloudgpu.launch.inventory import Node
from cloudgpu.recipe.schema import Recipe


def network_environment(recipe: Recipe, node: Node, nodes: int) -> Mapping[str, str]:
    """Variables for the ranks of this node; the recipe's own win over them."""
    if node.simulated:
        # Every simulated node is this machine; gloo would look up the host name and find an address of no node.
        return {"GLOO_SOCKET_IFNAME": "lo"} if node.private_address.startswith("127.") else {}
    if node.interface:
        # Whoever wrote the inventory knows which network the hosts share.
        return {"NCCL_SOCKET_IFNAME": f"={node.interface}", "GLOO_SOCKET_IFNAME": node.interface} if nodes > 1 else {}
    found = settings(node.instance_type, nodes, recipe.resources.network)
    return {one.name: one.value for one in found}


def uses_efa(recipe: Recipe, node: Node) -> bool:
    """Whether the ranks of this node talk through EFA."""
    return has_efa(node.instance_type) and recipe.resources.network != "tcp"
