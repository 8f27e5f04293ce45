"""The `tf-config` launcher: TensorFlow's cluster description in `TF_CONFIG`.

Without parameter servers, all processes are workers that mirror their variables, and worker 0 is the chief. With them,
the chief on the head distributes work asynchronously; workers and servers wait for it and never exit on their own.
"""

import json
from collections.abc import Mapping

from cloudgpu.launch.environment import ranks_on, refuse_reserved
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ports import following
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.launch.roles import Seat, seated, seats
from cloudgpu.recipe.schema import Recipe


def tf_config(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return every process with the addresses of the cluster and its own task.

    Raises:
        RecipeError: The recipe sets TF_CONFIG, or its command is invalid.
    """
    refuse_reserved(recipe)
    servers_a_node = recipe.launch.servers_per_node or 0
    mirrored = not servers_a_node
    workers = seats(inventory.nodes, lambda node: ranks_on(recipe, node), "worker", decides=mirrored)
    chief = () if mirrored else (Seat(inventory.head, "chief", 0, decides=True),)
    servers = seats(inventory.nodes, lambda _: servers_a_node, "ps", decides=False)
    order = (*chief, *workers, *servers)
    cluster: dict[str, list[str]] = {}
    for rank, seat in enumerate(order):
        # A port for every process, not for every one on a node: several nodes may be one machine.
        address = f"{seat.node.private_address}:{following(ctx.master_port, rank)}"
        cluster.setdefault(seat.role, []).append(address)

    def own(seat: Seat, _: int) -> Mapping[str, str]:
        return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": seat.role, "index": seat.index}})}

    return seated(recipe, inventory, ctx, order, own)
