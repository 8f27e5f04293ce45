"""The launchers by name, and those that the agents start without SSH: plain commands, torchrun, parameter servers.

The rendezvous of torchrun is static because the nodes are known in advance: it needs only the head node's address and
a port. See `docs/decisions/0003-the-agent-starts-the-ranks.md`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.launch.environment import (
    ProcessSlot,
    launch_slots,
    port_after,
    process_slots,
    process_variables,
    rank_environment,
    ranks_on,
    reject_reserved_variables,
    run_variables,
)
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import (
    LaunchInputs,
    NodeLaunch,
    RankLaunch,
    placeholder_values,
    rank_command,
    render_command,
    service_values,
)
from cloudgpu.launch.ssh_launchers import deepspeed, mpirun
from cloudgpu.recipe.launch_sections import DIST_KINDS, LOCAL_KINDS, SideService, kvstore_kind
from cloudgpu.recipe.problem import suggestion
from cloudgpu.recipe.schema import Recipe

_SERVERS_PER_NODE = 1


def kvstore(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return workers and, for distributed kinds, servers on every node, and a scheduler on the head node."""
    reject_reserved_variables(recipe)
    kind = kvstore_kind(recipe.launch, recipe.params)
    workers = process_slots(inventory.nodes, lambda node: ranks_on(recipe, node), "worker", decides=True)
    _check_worker_count(kind, len(workers))
    if kind in LOCAL_KINDS:
        return launch_slots(recipe, inventory, inputs, workers, lambda *_: {})
    servers_per_node = recipe.launch.servers_per_node or _SERVERS_PER_NODE
    servers = process_slots(inventory.nodes, lambda _: servers_per_node, "server", decides=False)
    scheduler = ProcessSlot(inventory.head, "scheduler", 0, decides=False)
    root = {
        "DMLC_PS_ROOT_URI": inventory.head.private_address,
        "DMLC_PS_ROOT_PORT": str(inputs.master_port),
        "DMLC_NUM_WORKER": str(len(workers)),
        "DMLC_NUM_SERVER": str(len(servers)),
    }

    def role_variables(slot: ProcessSlot, _: int) -> Mapping[str, str]:
        # Without DMLC_NODE_HOST, ps-lite uses the first interface that is up, which may be Docker's bridge.
        return {**root, "DMLC_ROLE": slot.role, "DMLC_NODE_HOST": slot.node.private_address}

    return launch_slots(recipe, inventory, inputs, (*workers, *servers, scheduler), role_variables)


def _check_worker_count(kind: str, workers: int) -> None:
    if kind not in LOCAL_KINDS | DIST_KINDS:
        known = ", ".join(sorted(LOCAL_KINDS) + sorted(DIST_KINDS))
        raise RecipeError(f"launch.kvstore: unknown kind {kind!r}", hint=f"use one of {known}")
    if kind in LOCAL_KINDS and workers > 1:
        message = f"launch.kvstore: {kind} works within one process, but there are {workers} workers"
        raise RecipeError(message, hint="set a kind that starts with dist_, or run a single worker")


def tf_config(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return every process. Each `TF_CONFIG` contains the process's own task and the addresses of all processes."""
    reject_reserved_variables(recipe)
    servers_per_node = recipe.launch.servers_per_node or 0
    mirrored = not servers_per_node
    workers = process_slots(inventory.nodes, lambda node: ranks_on(recipe, node), "worker", decides=mirrored)
    chief = () if mirrored else (ProcessSlot(inventory.head, "chief", 0, decides=True),)
    servers = process_slots(inventory.nodes, lambda _: servers_per_node, "ps", decides=False)
    order = (*chief, *workers, *servers)
    cluster: dict[str, list[str]] = {}
    for rank, slot in enumerate(order):
        # Every process of the run has a different port because several nodes may share one machine.
        address = f"{slot.node.private_address}:{port_after(inputs.master_port, rank)}"
        cluster.setdefault(slot.role, []).append(address)

    def task_variables(slot: ProcessSlot, _: int) -> Mapping[str, str]:
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": slot.role, "index": slot.index}})}

    return launch_slots(recipe, inventory, inputs, order, task_variables)


def torchrun(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return every rank's command and environment. Ranks are numbered consecutively across the nodes."""
    reject_reserved_variables(recipe)
    counts = tuple(ranks_on(recipe, node) for node in inventory.nodes)
    firsts = tuple(accumulate(counts, initial=0))
    return tuple(
        NodeLaunch(node.index, _ranks(recipe, inventory, inputs, node, counts, first))
        for node, first in zip(inventory.nodes, firsts, strict=False)
    )


def _ranks(
    recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, node: Node, counts: tuple[int, ...], first: int
) -> tuple[RankLaunch, ...]:
    position = inventory.nodes.index(node)
    argv = rank_command(recipe, inventory, inputs, position)
    rendezvous = _rendezvous(inventory, inputs, position, counts)

    def rank_launch(local: int) -> RankLaunch:
        rank = first + local
        own = {"LOCAL_RANK": str(local), "RANK": str(rank), "ROLE_RANK": str(rank)}
        fixed = {**rendezvous, **own, **process_variables(inventory, node, rank)}
        return RankLaunch(rank, local, argv, rank_environment(recipe, inventory, node, inputs, fixed, counts[position]))

    return tuple(rank_launch(local) for local in range(counts[position]))


def _rendezvous(
    inventory: Inventory, inputs: LaunchInputs, position: int, counts: tuple[int, ...]
) -> Mapping[str, str]:
    world = str(sum(counts))
    return {
        **run_variables(inventory, inputs, sum(counts)),
        "GROUP_RANK": str(position),
        "GROUP_WORLD_SIZE": str(len(inventory.nodes)),
        "LOCAL_WORLD_SIZE": str(counts[position]),
        "WORLD_SIZE": world,
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": inputs.run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store. With True, every rank would wait for a store that torchrun's agent would serve.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


Launcher = Callable[[Recipe, Inventory, LaunchInputs], tuple[NodeLaunch, ...]]


def each_node(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return the command for every node, with the node's position in the inventory as the rank."""
    reject_reserved_variables(recipe)
    world = len(inventory.nodes)
    return tuple(
        NodeLaunch(node.index, (_plain_process(recipe, inventory, inputs, node, world),)) for node in inventory.nodes
    )


def head_only(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node only. The other nodes have no rank."""
    reject_reserved_variables(recipe)
    head = NodeLaunch(inventory.head.index, (_plain_process(recipe, inventory, inputs, inventory.head, 1),))
    return (head, *(NodeLaunch(node.index, ()) for node in inventory.nodes[1:]))


def _plain_process(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, node: Node, world: int) -> RankLaunch:
    rank = inventory.nodes.index(node)
    fixed = {**run_variables(inventory, inputs, world), **process_variables(inventory, node, rank)}
    argv = rank_command(recipe, inventory, inputs, rank)
    return RankLaunch(rank, 0, argv, rank_environment(recipe, inventory, node, inputs, fixed, 1))


def with_services(
    gang: Sequence[NodeLaunch], recipe: Recipe, inventory: Inventory, inputs: LaunchInputs
) -> tuple[NodeLaunch, ...]:
    """Add the recipe's side services to the head node's processes, numbered after the launcher's own ranks."""
    first = 1 + max((rank.rank for node in gang for rank in node.ranks), default=-1)
    services = tuple(
        _process(recipe, inventory, inputs, service, rank) for rank, service in enumerate(recipe.launch.beside, first)
    )
    head = inventory.head.index
    return tuple(replace(node, ranks=(*node.ranks, *services)) if node.node_index == head else node for node in gang)


def _process(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, service: SideService, rank: int) -> RankLaunch:
    head = inventory.head
    names = {**placeholder_values(recipe, inventory, inputs), **service_values(service, head)}
    fixed: Mapping[str, str] = {
        **run_variables(inventory, inputs, 1),
        **process_variables(inventory, head, rank),
    }
    # TensorFlow would allocate all memory of every GPU that it can see. This also hides the cluster's GPUs of a shared
    # host, which the ranks use.
    env = rank_environment(recipe, inventory, head, inputs, fixed, 1) | {"CUDA_VISIBLE_DEVICES": ""}
    return RankLaunch(rank, 0, render_command(service.command, names, inputs), env, service.name, decides=False)


LAUNCHERS: Mapping[str, Launcher] = {
    "torchrun": torchrun,
    "mpirun": mpirun,
    "deepspeed": deepspeed,
    "kvstore": kvstore,
    "tf-config": tf_config,
    "each-node": each_node,
    "head-only": head_only,
    "service": head_only,
}


def launcher(name: str) -> Launcher:
    """Return the launcher with this name."""
    if name not in LAUNCHERS:
        known = suggestion(name, LAUNCHERS) or f"; known: {', '.join(LAUNCHERS)}"
        raise UsageError(f'unknown launcher "{name}"{known}', hint="see `cloudgpu recipe schema`")
    return LAUNCHERS[name]


def launch(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return every rank's command and environment, as computed by the recipe's launcher."""
    return launcher(recipe.launch.launcher)(recipe, inventory, inputs)
