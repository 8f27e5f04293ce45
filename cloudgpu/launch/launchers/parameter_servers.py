"""The launchers with parameter servers: `tf-config` for TensorFlow and `kvstore` for MXNet."""

import json
from collections.abc import Mapping

from cloudgpu.errors import RecipeError
from cloudgpu.launch.environment import ProcessSlot, launch_slots, process_slots, ranks_on, reject_reserved_variables
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ports import port_after
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.recipe.launch_sections import DIST_KINDS, LOCAL_KINDS, kvstore_kind
from cloudgpu.recipe.schema import Recipe

_SERVERS_PER_NODE = 1


def kvstore(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return workers and, for distributed kinds, servers on every node, and a scheduler on the head node."""
    reject_reserved_variables(recipe)
    kind = kvstore_kind(recipe.launch, recipe.params)
    workers = process_slots(inventory.nodes, lambda node: ranks_on(recipe, node), "worker", decides=True)
    _check(kind, len(workers))
    if kind in LOCAL_KINDS:
        return launch_slots(recipe, inventory, ctx, workers, lambda *_: {})
    servers_per_node = recipe.launch.servers_per_node or _SERVERS_PER_NODE
    servers = process_slots(inventory.nodes, lambda _: servers_per_node, "server", decides=False)
    scheduler = ProcessSlot(inventory.head, "scheduler", 0, decides=False)
    root = {
        "DMLC_PS_ROOT_URI": inventory.head.private_address,
        "DMLC_PS_ROOT_PORT": str(ctx.master_port),
        "DMLC_NUM_WORKER": str(len(workers)),
        "DMLC_NUM_SERVER": str(len(servers)),
    }

    def role_variables(slot: ProcessSlot, _: int) -> Mapping[str, str]:
        # Without DMLC_NODE_HOST, ps-lite uses the first interface that is up, which may be Docker's bridge.
        return {**root, "DMLC_ROLE": slot.role, "DMLC_NODE_HOST": slot.node.private_address}

    return launch_slots(recipe, inventory, ctx, (*workers, *servers, scheduler), role_variables)


def _check(kind: str, workers: int) -> None:
    if kind not in LOCAL_KINDS | DIST_KINDS:
        known = ", ".join(sorted(LOCAL_KINDS) + sorted(DIST_KINDS))
        raise RecipeError(f"launch.kvstore: unknown kind {kind!r}", hint=f"use one of {known}")
    if kind in LOCAL_KINDS and workers > 1:
        message = f"launch.kvstore: {kind} works within one process, but there are {workers} workers"
        raise RecipeError(message, hint="set a kind that starts with dist_, or run a single worker")


def tf_config(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
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
        address = f"{slot.node.private_address}:{port_after(ctx.master_port, rank)}"
        cluster.setdefault(slot.role, []).append(address)

    def task_variables(slot: ProcessSlot, _: int) -> Mapping[str, str]:
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": slot.role, "index": slot.index}})}

    return launch_slots(recipe, inventory, ctx, order, task_variables)
