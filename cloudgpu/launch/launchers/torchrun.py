"""The `torchrun` launcher: one process per rank, with the environment that torchrun sets for its workers.

The rendezvous is static because the nodes are known in advance: it needs only the head node's address and a port. See
`docs/decisions/0003-the-agent-starts-the-ranks.md`.
"""

from collections.abc import Mapping
from itertools import accumulate

from cloudgpu.launch.command import rank_command
from cloudgpu.launch.environment import (
    process_variables,
    rank_environment,
    ranks_on,
    reject_reserved_variables,
    run_variables,
)
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe


def torchrun(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return every rank's command and environment. Ranks are numbered consecutively across the nodes."""
    reject_reserved_variables(recipe)
    counts = tuple(ranks_on(recipe, node) for node in inventory.nodes)
    firsts = tuple(accumulate(counts, initial=0))
    return tuple(
        NodeLaunch(node.index, _ranks(recipe, inventory, ctx, node, counts, first))
        for node, first in zip(inventory.nodes, firsts, strict=False)
    )


def _ranks(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, node: Node, counts: tuple[int, ...], first: int
) -> tuple[RankLaunch, ...]:
    position = inventory.nodes.index(node)
    argv = rank_command(recipe, inventory, ctx, position)
    rendezvous = _rendezvous(inventory, ctx, position, counts)

    def rank_launch(local: int) -> RankLaunch:
        rank = first + local
        own = {"LOCAL_RANK": str(local), "RANK": str(rank), "ROLE_RANK": str(rank)}
        fixed = {**rendezvous, **own, **process_variables(inventory, node, rank)}
        return RankLaunch(rank, local, argv, rank_environment(recipe, inventory, node, ctx, fixed, counts[position]))

    return tuple(rank_launch(local) for local in range(counts[position]))


def _rendezvous(inventory: Inventory, ctx: LaunchContext, position: int, counts: tuple[int, ...]) -> Mapping[str, str]:
    world = str(sum(counts))
    return {
        **run_variables(inventory, ctx, sum(counts)),
        "GROUP_RANK": str(position),
        "GROUP_WORLD_SIZE": str(len(inventory.nodes)),
        "LOCAL_WORLD_SIZE": str(counts[position]),
        "WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": ctx.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store. With True, every rank would wait for a store that torchrun's agent would serve.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }
