"""The command of a rank: the recipe's template filled, and its interpreter in front where it is Python."""

from collections.abc import Mapping

from cloudgpu.launch.ranks import LaunchContext
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe, Scalar


def command(recipe: Recipe, ctx: LaunchContext) -> tuple[str, ...]:
    """What every rank runs.

    `train.py ...` and `-m package ...` get the run's interpreter in front; anything else is a program as it stands.

    Raises:
        RecipeError: The template cannot be split or names something unknown.
    """
    words = template.argv(recipe.launch.command, values(recipe, ctx))
    is_python = words[0].endswith(".py") or words[0] == "-m"
    return (ctx.interpreter, *words) if is_python else words


def values(recipe: Recipe, ctx: LaunchContext) -> Mapping[str, Scalar]:
    """What the names in a command stand for in this run."""
    checkpoint = {"checkpoint": ctx.checkpoint} if ctx.checkpoint else {}
    return {
        **recipe.params,
        **{f"data.{name}": directory for name, directory in ctx.data.items()},
        **{f"storage.{name}": directory for name, directory in ctx.storage.items()},
        "run": ctx.run_id,
        "outputs": ctx.outputs,
        **checkpoint,
    }
