"""The `tf-config` launcher: TensorFlow's cluster description in `TF_CONFIG`.

Without parameter servers, all processes are workers that mirror their variables, and worker 0 is the chief. With
parameter servers, the chief on the head node distributes work asynchronously, and workers and servers run until they
are stopped.
"""

import json
from collections.abc import Mapping

from cloudgpu.launch.environment import ranks_on, reject_reserved_variables
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ports import port_after
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.launch.roles import ProcessSlot, launch_slots, process_slots
from cloudgpu.recipe.schema import Recipe


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
