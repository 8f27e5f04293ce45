"""The batch that all ranks share in one step."""

from cloudgpu import bounds
from cloudgpu.errors import RecipeError
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe


def batch_of(recipe: Recipe) -> int | None:
    """Samples in one step over all ranks; None where the recipe does not say, or says no whole number above 0."""
    batch = recipe.launch.global_batch
    if batch is None or isinstance(batch, int):
        return batch
    try:
        words = template.argv(batch, recipe.params)
    except RecipeError:
        return None
    text = words[0] if len(words) == 1 else ""
    try:
        return bounds.whole(text, least=1)
    except ValueError:
        return None
