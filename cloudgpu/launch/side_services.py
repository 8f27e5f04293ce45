"""Side services: additional processes on the head node that are stopped when the ranks exit."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cloudgpu.launch.command import placeholder_values, render_command, service_values
from cloudgpu.launch.environment import process_variables, rank_environment, run_variables
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.service import SideService


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
