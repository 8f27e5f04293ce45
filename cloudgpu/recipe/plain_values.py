"""Convert a recipe back to plain values."""

from typing import Any

from cloudgpu.recipe.schema import Recipe


def to_plain_values(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain values with the names used in the file, without fields that have their default."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"schema": recipe.schema_version, **values}
