"""The environment and roles of a run's processes, and the check for variables that a recipe may not set."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.launch.command import rank_command, script_variables
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.network import nccl_log_variables, network_environment
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch, RankLaunch
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES


def reject_reserved_variables(recipe: Recipe) -> None:
    """Reject a recipe that sets variables reserved for its launcher."""
    problems = tuple(_reserved(recipe))
    if problems:
        hint = "remove them from the recipe: the launcher sets them, and the command can read them"
        raise RecipeError(problems[0], problems=problems, hint=hint)


def _reserved(recipe: Recipe) -> Iterator[str]:
    name = recipe.launch.launcher
    reserved = LAUNCHER_VARIABLES[name]
    for variable in sorted(reserved & recipe.environment.env.keys()):
        yield f"environment.env.{variable}: is set by the {name} launcher and may not be overridden"
    for variable in sorted(reserved & set(recipe.environment.secrets)):
        yield f"environment.secrets: {variable} is set by the {name} launcher and may not be a secret"


def ranks_on(recipe: Recipe, node: Node) -> int:
    """Return the number of ranks on a node."""
    requested = recipe.launch.ranks
    count = node.gpus if requested == "gpus" else requested
    if count < 1:
        raise UsageError(
            f"launch.ranks_per_node is {requested}, but node {node.index} ({node.instance_type}) has no GPU",
            hint="set `ranks_per_node: 1` in the recipe, or choose nodes with GPUs",
        )
    return count


def rank_environment(
    recipe: Recipe, inventory: Inventory, node: Node, ctx: LaunchContext, fixed: Mapping[str, str], ranks: int
) -> dict[str, str]:
    """Return the environment of a node's ranks.

    The recipe overrides the defaults, and `fixed` overrides the recipe. On a shared host, the restriction to the
    cluster's GPUs overrides both.
    """
    # Like torchrun, limit the threads: if every rank used one thread per core, the ranks would compete for the cores.
    # Simulated nodes share the cores of this machine.
    threads = {"OMP_NUM_THREADS": "1"} if ranks > 1 or node.simulated else {}
    return {
        **threads,
        "PYTHONUNBUFFERED": "1",
        **network_environment(recipe, node, len(inventory.nodes)),
        **nccl_log_variables(recipe, inventory, ctx),
        **script_variables(recipe, inventory, ctx),
        **recipe.environment.env,
        **fixed,
        **_visible_gpus(node),
    }


def _visible_gpus(node: Node) -> dict[str, str]:
    """Return the variable that restricts the ranks on a shared host to the cluster's GPUs."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.devices))} if node.devices else {}


def run_variables(inventory: Inventory, ctx: LaunchContext, world: int) -> dict[str, str]:
    """Return the variables with the same value in all processes of a run."""
    return {
        "MASTER_ADDR": inventory.head.private_address,
        "MASTER_PORT": str(ctx.master_port),
        "CLOUDGPU_RUN_ID": ctx.run_id,
        "CLOUDGPU_WORLD_SIZE": str(world),
        "CLOUDGPU_NUM_NODES": str(len(inventory.nodes)),
        "CLOUDGPU_NODE_IPS": "\n".join(node.private_address for node in inventory.nodes),
        "CLOUDGPU_OUTPUTS": ctx.outputs,
        "CLOUDGPU_CHECKPOINT": ctx.checkpoint,
    }


def process_variables(inventory: Inventory, node: Node, rank: int) -> dict[str, str]:
    """Return the variables that differ between the processes of a run."""
    return {
        "CLOUDGPU_RANK": str(rank),
        "CLOUDGPU_NODE_RANK": str(inventory.nodes.index(node)),
        "CLOUDGPU_GPUS_PER_NODE": str(node.gpus),
    }


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
