"""A recipe back to plain values, with the names it is written with and nothing that is a default."""

from typing import Any

from cloudgpu.recipe.schema import Recipe


def plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as `check` reads it; fields that have their default are left out."""
    values = recipe.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {"schema": recipe.schema_version, **values}
