"""Assign processes with different roles, such as workers and servers, to the nodes of a run."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cloudgpu.launch.command import rank_command
from cloudgpu.launch.environment import process_variables, rank_environment, run_variables
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class ProcessSlot:
    """A process to start: its node, its role and its index within the role."""

    node: Node
    role: str
    index: int
    decides: bool


SlotVariables = Callable[[ProcessSlot, int], Mapping[str, str]]
"""Function that returns the launcher's variables for a process, given its slot and rank."""


def process_slots(
    nodes: Iterable[Node], count: Callable[[Node], int], role: str, *, decides: bool
) -> tuple[ProcessSlot, ...]:
    """Return `count(node)` processes of a role for each node, numbered consecutively."""
    hosts = [node for node in nodes for _ in range(count(node))]
    return tuple(ProcessSlot(node, role, index, decides) for index, node in enumerate(hosts))


def launch_slots(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, order: tuple[ProcessSlot, ...], own: SlotVariables
) -> tuple[NodeLaunch, ...]:
    """Return the command and environment of every process. Ranks are numbered in the order of `order`."""
    return tuple(NodeLaunch(node.index, _ranks(recipe, inventory, ctx, node, order, own)) for node in inventory.nodes)


def _ranks(
    recipe: Recipe,
    inventory: Inventory,
    ctx: LaunchContext,
    node: Node,
    order: tuple[ProcessSlot, ...],
    own: SlotVariables,
) -> tuple[RankLaunch, ...]:
    node_slots = [(rank, slot) for rank, slot in enumerate(order) if slot.node is node]
    argv = rank_command(recipe, inventory, ctx, inventory.nodes.index(node))
    run = run_variables(inventory, ctx, sum(slot.role == "worker" for slot in order))
    workers = sum(slot.role == "worker" for _, slot in node_slots)

    def rank_launch(local: int, rank: int, slot: ProcessSlot) -> RankLaunch:
        fixed = {**run, **process_variables(inventory, node, rank), "CLOUDGPU_ROLE": slot.role, **own(slot, rank)}
        env = rank_environment(recipe, inventory, node, ctx, fixed, workers)
        return RankLaunch(rank, local, argv, env, slot.role, slot.decides)

    return tuple(rank_launch(local, rank, slot) for local, (rank, slot) in enumerate(node_slots))
