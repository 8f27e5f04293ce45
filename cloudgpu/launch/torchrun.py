"""The `torchrun` launcher: one process a rank, with the environment that torchrun gives its workers.

The rendezvous is static: the nodes are known, so nobody needs to agree on anything but the head's address and a port.
See `docs/decisions/0003-ranks-are-started-by-the-agent.md`.
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.launch.command import command
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.network import network_environment
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.reserved import LAUNCHER_VARIABLES
from cloudgpu.recipe.schema import Recipe

RESERVED = LAUNCHER_VARIABLES["torchrun"]


def torchrun(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Every rank's command and environment; ranks count through the nodes in their order.

    Raises:
        RecipeError: The recipe sets a variable of the rendezvous, or its command is wrong.
        UsageError: One rank a GPU is asked for on nodes without GPUs.
    """
    _refuse_reserved(recipe)
    argv = command(recipe, ctx)
    counts = tuple(_ranks_on(recipe, node) for node in inventory.nodes)
    firsts = tuple(accumulate(counts, initial=0))
    return tuple(
        NodeLaunch(
            node.index,
            tuple(
                RankLaunch(first + local, local, argv, _environment(recipe, inventory, ctx, node, counts, local))
                for local in range(count)
            ),
        )
        for node, first, count in zip(inventory.nodes, firsts, counts, strict=False)
    )


def _refuse_reserved(recipe: Recipe) -> None:
    problems = tuple(_reserved(recipe))
    if problems:
        hint = "leave them out: the launcher sets them, and the command reads them from its environment"
        raise RecipeError(problems[0], problems=problems, hint=hint)


def _reserved(recipe: Recipe) -> Iterator[str]:
    for name in sorted(RESERVED & recipe.environment.env.keys()):
        yield f"environment.env.{name}: is set by the torchrun launcher and may not be overridden"
    for name in sorted(RESERVED & set(recipe.environment.secrets)):
        yield f"environment.secrets: {name} is set by the torchrun launcher and may not be a secret"


def _ranks_on(recipe: Recipe, node: Node) -> int:
    wanted = recipe.launch.ranks_per_node
    count = node.gpus if wanted == "gpus" else wanted
    if count < 1:
        raise UsageError(
            f"launch.ranks_per_node is {wanted}, which gives node {node.index} ({node.instance_type}) no rank",
            hint="set `ranks_per_node: 1` in the recipe, or choose nodes with GPUs",
        )
    return count


def _environment(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, node: Node, counts: tuple[int, ...], local: int
) -> Mapping[str, str]:
    """Defaults, then the recipe's own variables, then what nobody may override."""
    position = inventory.nodes.index(node)
    rank = sum(counts[:position]) + local
    return {
        **_defaults(counts[position], simulated=node.simulated),
        **network_environment(recipe, node, len(inventory.nodes)),
        **recipe.environment.env,
        **_rendezvous(inventory, ctx, position, counts),
        "LOCAL_RANK": str(local),
        "RANK": str(rank),
        "ROLE_RANK": str(rank),
        "CLOUDGPU_RANK": str(rank),
        "CLOUDGPU_GPUS_PER_NODE": str(node.gpus),
    }


def _defaults(ranks_on_node: int, *, simulated: bool) -> Mapping[str, str]:
    # As torchrun: several ranks, each with a thread a core, only get in each other's way. Simulated nodes share cores.
    threads = {"OMP_NUM_THREADS": "1"} if ranks_on_node > 1 or simulated else {}
    return {**threads, "PYTHONUNBUFFERED": "1"}


def _rendezvous(inventory: Inventory, ctx: LaunchContext, position: int, counts: tuple[int, ...]) -> Mapping[str, str]:
    nodes, world = str(len(inventory.nodes)), str(sum(counts))
    return {
        "GROUP_RANK": str(position),
        "GROUP_WORLD_SIZE": nodes,
        "LOCAL_WORLD_SIZE": str(counts[position]),
        "WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": inventory.head.private_address,
        "MASTER_PORT": str(ctx.master_port),
        "TORCHELASTIC_RUN_ID": ctx.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store; a stray True would leave every rank waiting for a server that nobody runs.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "CLOUDGPU_RUN_ID": ctx.run_id,
        "CLOUDGPU_WORLD_SIZE": world,
        "CLOUDGPU_NODE_RANK": str(position),
        "CLOUDGPU_NUM_NODES": nodes,
        "CLOUDGPU_NODE_IPS": "\n".join(node.private_address for node in inventory.nodes),
        "CLOUDGPU_OUTPUTS": ctx.outputs,
        "CLOUDGPU_CHECKPOINT": ctx.checkpoint,
    }
