"""Launchers for plain commands: `each-node`, `head-only` and `service`. They do not set up a rendezvous."""

from cloudgpu.launch.command import rank_command
from cloudgpu.launch.environment import process_variables, rank_environment, reject_reserved_variables, run_variables
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe


def each_node(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for every node, with the node's position in the inventory as the rank."""
    reject_reserved_variables(recipe)
    world = len(inventory.nodes)
    return tuple(NodeLaunch(node.index, (_process(recipe, inventory, ctx, node, world),)) for node in inventory.nodes)


def head_only(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node only. The other nodes have no rank."""
    reject_reserved_variables(recipe)
    head = NodeLaunch(inventory.head.index, (_process(recipe, inventory, ctx, inventory.head, 1),))
    return (head, *(NodeLaunch(node.index, ()) for node in inventory.nodes[1:]))


def _process(recipe: Recipe, inventory: Inventory, ctx: LaunchContext, node: Node, world: int) -> RankLaunch:
    rank = inventory.nodes.index(node)
    fixed = {**run_variables(inventory, ctx, world), **process_variables(inventory, node, rank)}
    argv = rank_command(recipe, inventory, ctx, rank)
    return RankLaunch(rank, 0, argv, rank_environment(recipe, inventory, node, ctx, fixed, 1))


def service(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node only, as `head_only` does."""
    return head_only(recipe, inventory, ctx)
