"""Resolve a recipe's global batch size."""

from cloudgpu import bounds
from cloudgpu.errors import RecipeError
from cloudgpu.recipe import template
from cloudgpu.recipe.schema import Recipe


def samples_per_step(recipe: Recipe) -> int | None:
    """Return the samples per step across all ranks; None if the recipe does not set a whole number above 0."""
    batch = recipe.launch.global_batch
    if batch is None or isinstance(batch, int):
        return batch
    try:
        words = template.argv(batch, recipe.params)
    except RecipeError:
        return None
    text = words[0] if len(words) == 1 else ""
    try:
        return bounds.parse_whole_number(text, least=1)
    except ValueError:
        return None
