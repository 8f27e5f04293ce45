"""The `service` launcher: a program on the head that answers requests until it is stopped."""

from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ranks import LaunchContext, NodeLaunch
from cloudgpu.launch.single import head_only
from cloudgpu.recipe.schema import Recipe


def service(recipe: Recipe, inventory: Inventory, ctx: LaunchContext) -> tuple[NodeLaunch, ...]:
    """Return the command on the head, like `head-only`.

    Raises:
        RecipeError: The recipe sets a variable of the launcher, or its command is invalid.
    """
    return head_only(recipe, inventory, ctx)
