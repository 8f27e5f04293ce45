"""Render a rank's command from the recipe's template, prefixed with the interpreter for Python scripts."""

from collections.abc import Mapping

from cloudgpu.launch.inventory import Inventory, Node, loopback_address
from cloudgpu.launch.ranks import LaunchContext
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe, Scalar
from cloudgpu.recipe.sections.service import Endpoint

HOSTFILE = "hostfile"
"""Path of the hostfile below the run's directory, and the name of its placeholder in commands."""

SCRIPT_STARTER = "script/start"
"""Path, below the run's directory, of the program that runs the recipe's script."""


def rank_command(recipe: Recipe, inventory: Inventory, ctx: LaunchContext, position: int = 0) -> tuple[str, ...]:
    """Return the command of a rank on the node at this position in the inventory.

    If the recipe has a script, the command is the program that runs it; see `cloudgpu.launch.script`. Otherwise,
    `train.py ...` and `-m package ...` are prefixed with the run's interpreter; anything else is run unchanged.
    """
    if recipe.launch.run:
        return (f"{ctx.run_dir}/{SCRIPT_STARTER}",)
    return render_command(recipe.launch.command, placeholder_values(recipe, inventory, ctx, position), ctx)


def render_command(text: str, names: Mapping[str, Scalar], ctx: LaunchContext) -> tuple[str, ...]:
    """Render a command line of a recipe and prefix Python scripts with the interpreter."""
    words = template.argv(text, names)
    is_python = words[0].endswith(".py") or words[0] == "-m"
    return (ctx.interpreter, *words) if is_python else words


def placeholder_values(
    recipe: Recipe, inventory: Inventory, ctx: LaunchContext, position: int = 0
) -> Mapping[str, Scalar]:
    """Return the values of a command's placeholders on the node at this position in the inventory."""
    checkpoint = {"checkpoint": ctx.checkpoint} if ctx.checkpoint else {}
    return {
        **recipe.params,
        **{f"data.{name}": directory for name, directory in ctx.data.items()},
        **{f"storage.{name}": directory for name, directory in ctx.storage.items()},
        "run": ctx.run_id,
        "outputs": ctx.outputs,
        "node_rank": position,
        "num_nodes": len(inventory.nodes),
        "head_address": inventory.head.private_address,
        "master_port": ctx.master_port,
        HOSTFILE: f"{ctx.run_dir}/{HOSTFILE}",
        **checkpoint,
        **service_values(recipe.launch.service, inventory.head),
    }


def service_values(endpoint: Endpoint | None, head: Node) -> Mapping[str, Scalar]:
    """Return the placeholder values for the port and address of a service; empty if there is no service."""
    if endpoint is None:
        return {}
    return {"service.port": endpoint.port, "service.address": loopback_address(head)}
