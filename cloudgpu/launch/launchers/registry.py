"""Registry of launchers by name, the launchers for plain commands, and the side services on the head node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cloudgpu.errors import UsageError
from cloudgpu.launch.command import placeholder_values, rank_command, render_command, service_values
from cloudgpu.launch.environment import process_variables, rank_environment, reject_reserved_variables, run_variables
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers.deepspeed import deepspeed
from cloudgpu.launch.launchers.mpirun import mpirun
from cloudgpu.launch.launchers.parameter_servers import kvstore, tf_config
from cloudgpu.launch.launchers.torchrun import torchrun
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.launch_sections import SideService
from cloudgpu.recipe.problem import suggestion
from cloudgpu.recipe.schema import Recipe

Launcher = Callable[[Recipe, Inventory, LaunchContext], tuple[NodeLaunch, ...]]


def each_node(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for every node, with the node's position in the inventory as the rank."""
    reject_reserved_variables(recipe)
    world = len(inventory.nodes)
    return tuple(
        NodeLaunch(node.index, (_plain_process(recipe, inventory, ctx, node, world),)) for node in inventory.nodes
    )


def head_only(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node only. The other nodes have no rank."""
    reject_reserved_variables(recipe)
    head = NodeLaunch(inventory.head.index, (_plain_process(recipe, inventory, ctx, inventory.head, 1),))
    return (head, *(NodeLaunch(node.index, ()) for node in inventory.nodes[1:]))


def _plain_process(recipe: Recipe, inventory: Inventory, ctx: LaunchContext, node: Node, world: int) -> RankLaunch:
    rank = inventory.nodes.index(node)
    fixed = {**run_variables(inventory, ctx, world), **process_variables(inventory, node, rank)}
    argv = rank_command(recipe, inventory, ctx, rank)
    return RankLaunch(rank, 0, argv, rank_environment(recipe, inventory, node, ctx, fixed, 1))


def service(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node only, as `head_only` does."""
    return head_only(recipe, inventory, ctx)


def with_services(
    gang: Sequence[NodeLaunch], recipe: Recipe, inventory: Inventory, ctx: LaunchContext
) -> tuple[NodeLaunch, ...]:
    """Add the recipe's side services to the head node's processes, numbered after the launcher's own ranks."""
    first = 1 + max((rank.rank for node in gang for rank in node.ranks), default=-1)
    services = tuple(
        _process(recipe, inventory, ctx, service, rank) for rank, service in enumerate(recipe.launch.beside, first)
    )
    head = inventory.head.index
    return tuple(replace(node, ranks=(*node.ranks, *services)) if node.node_index == head else node for node in gang)


def _process(recipe: Recipe, inventory: Inventory, ctx: LaunchContext, service: SideService, rank: int) -> RankLaunch:
    head = inventory.head
    names = {**placeholder_values(recipe, inventory, ctx), **service_values(service, head)}
    fixed: Mapping[str, str] = {
        **run_variables(inventory, ctx, 1),
        **process_variables(inventory, head, rank),
    }
    # TensorFlow would allocate all memory of every GPU that it can see. This also hides the cluster's GPUs of a shared
    # host, which the ranks use.
    env = rank_environment(recipe, inventory, head, ctx, fixed, 1) | {"CUDA_VISIBLE_DEVICES": ""}
    return RankLaunch(rank, 0, render_command(service.command, names, ctx), env, service.name, decides=False)


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
