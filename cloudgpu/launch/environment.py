"""The environment and roles of a run's processes: reserved variables, the run's ports, NCCL and Gloo.

NCCL falls back from EFA to TCP without an error, so only its own log shows what a run really used. The variables
specific to instance types are defined in `catalog/nccl_variables.py`, so that a plan can show them.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog.nccl_variables import has_efa, rank_variables
from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.launch.containers import INSIDE
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import LaunchInputs, NodeLaunch, RankLaunch, rank_command, script_variables
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.text_rules import LAUNCHER_VARIABLES, RUN_PORTS

LOG_VARIABLES: Final = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_NCCL_LOG: Final = "nccl/%h-%p.log"
"""One file per process: NCCL replaces `%h` by the host's name and `%p` by the process ID."""
_PORT_RANGE = len(RUN_PORTS) // 2
"""Number of rendezvous ports. The same number of ports for the agents' connections follows."""


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


def watches_network(inventory: Inventory) -> bool:
    """Return True if the run has traffic between nodes that NCCL may carry."""
    return len(inventory.nodes) > 1 and all(node.gpus > 0 for node in inventory.nodes)


def sets_own_log(recipe: Recipe) -> tuple[str, ...]:
    """Return the variables of NCCL's log that the recipe sets itself."""
    return tuple(name for name in LOG_VARIABLES if name in recipe.environment.env or name in recipe.environment.secrets)


def nccl_log_variables(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> Mapping[str, str]:
    """Return the variables of NCCL's log.

    If the recipe sets one of them, all are left to the recipe, so that NCCL's lines appear where its author wants them.
    The agent then finds them only in the ranks' own output.
    """
    if not watches_network(inventory) or not inputs.run_dir or sets_own_log(recipe):
        return {}
    folder = INSIDE if inputs.enter else inputs.run_dir
    # INFO, because NCCL names its network at no other level. Both subsystems are silent once the ranks are connected.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": f"{folder}/{_NCCL_LOG}"}


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
    recipe: Recipe, inventory: Inventory, node: Node, inputs: LaunchInputs, fixed: Mapping[str, str], ranks: int
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
        **nccl_log_variables(recipe, inventory, inputs),
        **script_variables(recipe, inventory, inputs),
        **recipe.environment.env,
        **fixed,
        **_visible_gpus(node),
    }


def _visible_gpus(node: Node) -> dict[str, str]:
    """Return the variable that restricts the ranks on a shared host to the cluster's GPUs."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, node.devices))} if node.devices else {}


def run_variables(inventory: Inventory, inputs: LaunchInputs, world: int) -> dict[str, str]:
    """Return the variables with the same value in all processes of a run."""
    return {
        "MASTER_ADDR": inventory.head.private_address,
        "MASTER_PORT": str(inputs.master_port),
        "CLOUDGPU_RUN_ID": inputs.run_id,
        "CLOUDGPU_WORLD_SIZE": str(world),
        "CLOUDGPU_NUM_NODES": str(len(inventory.nodes)),
        "CLOUDGPU_NODE_IPS": "\n".join(node.private_address for node in inventory.nodes),
        "CLOUDGPU_OUTPUTS": inputs.outputs,
        "CLOUDGPU_CHECKPOINT": inputs.checkpoint,
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
    recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, order: tuple[ProcessSlot, ...], own: SlotVariables
) -> tuple[NodeLaunch, ...]:
    """Return the command and environment of every process. Ranks are numbered in the order of `order`."""
    return tuple(
        NodeLaunch(node.index, _ranks(recipe, inventory, inputs, node, order, own)) for node in inventory.nodes
    )


def _ranks(
    recipe: Recipe,
    inventory: Inventory,
    inputs: LaunchInputs,
    node: Node,
    order: tuple[ProcessSlot, ...],
    own: SlotVariables,
) -> tuple[RankLaunch, ...]:
    node_slots = [(rank, slot) for rank, slot in enumerate(order) if slot.node is node]
    argv = rank_command(recipe, inventory, inputs, inventory.nodes.index(node))
    run = run_variables(inventory, inputs, sum(slot.role == "worker" for slot in order))
    workers = sum(slot.role == "worker" for _, slot in node_slots)

    def rank_launch(local: int, rank: int, slot: ProcessSlot) -> RankLaunch:
        fixed = {**run, **process_variables(inventory, node, rank), "CLOUDGPU_ROLE": slot.role, **own(slot, rank)}
        env = rank_environment(recipe, inventory, node, inputs, fixed, workers)
        return RankLaunch(rank, local, argv, env, slot.role, slot.decides)

    return tuple(rank_launch(local, rank, slot) for local, (rank, slot) in enumerate(node_slots))


def master_port(run_id: str, attempt: int = 0) -> int:
    """Return the run's rendezvous port on the head node. If the port is in use, call again with the next `attempt`."""
    return RUN_PORTS.start + _hashed_offset("master", run_id, attempt)


def gang_port(run_id: str, attempt: int = 0) -> int:
    """Return the port on which the head node's agent listens for the other agents."""
    return RUN_PORTS.start + _PORT_RANGE + _hashed_offset("gang", run_id, attempt)


def port_after(port: int, count: int) -> int:
    """Return `port` plus `count`, wrapping around within the rendezvous range."""
    return RUN_PORTS.start + (port - RUN_PORTS.start + count) % _PORT_RANGE


def _hashed_offset(purpose: str, run_id: str, attempt: int) -> int:
    digest = hashlib.sha256(f"{purpose}/{run_id}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _PORT_RANGE
