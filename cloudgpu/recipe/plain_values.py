"""Convert a recipe back to plain values."""

from typing import Any

from cloudgpu.recipe.schema import Recipe


def to_plain_values(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe as plain values keyed by the field names in the file, omitting fields set to their defaults."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"schema": recipe.schema_version, **values}
