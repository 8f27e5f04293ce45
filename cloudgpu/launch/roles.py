"""Assign processes of several roles to the nodes of a run: workers first, then servers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cloudgpu.launch.command import command
from cloudgpu.launch.environment import about_process, about_run, layered
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Seat:
    """A process without its environment: node, role, and number within the role."""

    node: Node
    role: str
    index: int
    decides: bool


Own = Callable[[Seat, int], Mapping[str, str]]
"""What a launcher gives one process, by its seat and rank."""


def seats(nodes: Iterable[Node], count: Callable[[Node], int], role: str, *, decides: bool) -> tuple[Seat, ...]:
    """Return this many processes of a role on each node, numbered consecutively."""
    places = [node for node in nodes for _ in range(count(node))]
    return tuple(Seat(node, role, index, decides) for index, node in enumerate(places))


def seated(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, order: tuple[Seat, ...], own: Own
) -> tuple[NodeLaunch, ...]:
    """Return every process with its command and environment. Ranks are numbered in the given order.

    Raises:
        RecipeError: The recipe's command is invalid.
    """
    return tuple(NodeLaunch(node.index, _ranks(recipe, inventory, ctx, node, order, own)) for node in inventory.nodes)


def _ranks(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, node: Node, order: tuple[Seat, ...], own: Own
) -> tuple[RankLaunch, ...]:
    mine = [(rank, seat) for rank, seat in enumerate(order) if seat.node is node]
    argv = command(recipe, inventory, ctx, inventory.nodes.index(node))
    run = about_run(inventory, ctx, sum(seat.role == "worker" for seat in order))
    workers = sum(seat.role == "worker" for _, seat in mine)

    def rank_launch(local: int, rank: int, seat: Seat) -> RankLaunch:
        fixed = {**run, **about_process(inventory, node, rank), "CLOUDGPU_ROLE": seat.role, **own(seat, rank)}
        env = layered(recipe, inventory, node, fixed, workers)
        return RankLaunch(rank, local, argv, env, seat.role, seat.decides)

    return tuple(rank_launch(local, rank, seat) for local, (rank, seat) in enumerate(mine))
