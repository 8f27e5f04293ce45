"""The `service` launcher: a program on the head that answers requests until somebody ends it."""

from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.launch.single import head_only
from cloudgpu.recipe.schema import Recipe


def service(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """The command on the head, as `head-only` has it.

    Raises:
        RecipeError: The recipe sets what the launcher sets, or its command is wrong.
    """
    return head_only(recipe, inventory, ctx)
