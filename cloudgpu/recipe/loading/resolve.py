"""Resolve a loaded recipe: apply the rehearsal section, then `--set` assignments."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.loading.files import ALLOW_HINT, OUTSIDE
from cloudgpu.recipe.loading.loader import LoadedRecipe, validate_recipe
from cloudgpu.recipe.loading.set_option import assign, set_launch_field
from cloudgpu.recipe.plain_values import to_plain_values
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command


def resolve(loaded: LoadedRecipe, *, sets: Mapping[str, str], rehearsal: bool) -> Recipe:
    """Return the recipe with `--set` assignments and, in a rehearsal, its rehearsal section applied.

    `--set` takes precedence over the rehearsal section. The section remains in the recipe because its objects are
    uploaded later.
    """
    values = to_plain_values(loaded.recipe)
    rehearsal_sets = {name: text for name, text in sets.items() if name.startswith("rehearsal.")}
    _assign(values, rehearsal_sets)
    if rehearsal:
        _rehearse(values)
    _assign(values, {name: text for name, text in sets.items() if name not in rehearsal_sets})
    recipe, problems = validate_recipe(values, loaded.base, loaded.allowed)
    if recipe is None or problems:
        lines = [problem.text for problem in problems]
        message = f"the recipe {loaded.recipe.name} is invalid with {_shown(sets)}"
        show = command("cloudgpu", "recipe", "show", str(loaded.path))
        outside = all(OUTSIDE in line for line in lines)
        hint = ALLOW_HINT if outside else f"list the fields that can be set: {show}"
        raise RecipeError(message, problems=lines, hint=hint)
    return recipe


def _assign(values: dict[str, Any], sets: Mapping[str, str]) -> None:
    for name, text in sets.items():
        assign(values, name, text)


def _rehearse(values: dict[str, Any]) -> None:
    """Apply the rehearsal section to the plain values. Fields that it does not set keep their values."""
    section = values.get("rehearsal") or {}
    if section.get("environment") is not None:
        values["environment"] = section["environment"]
    if section.get("setup") is not None:
        values["setup"] = section["setup"]
    for field in ("command", "run", "ranks_per_node"):
        if section.get(field) is not None:
            set_launch_field(values["launch"], field, section[field])
    values.setdefault("params", {}).update(section.get("params") or {})
    for data in values.get("data") or []:
        _replace_source(data, section.get("objects") or {})


def _replace_source(data: dict[str, Any], objects: Mapping[str, str]) -> None:
    """Replace a source with its local copy if the rehearsal cannot serve it. The rehearsal serves S3 sources itself."""
    if data["from"] in objects and not data["from"].startswith("s3://"):
        kept: dict[str, Any] = {name: data[name] for name in ("name", "to", "keep") if name in data}
        place = objects[data["from"]]
        data.clear()
        data.update({**kept, "from": place})


def _shown(sets: Mapping[str, str]) -> str:
    return " ".join(command("--set", f"{name}={text}") for name, text in sets.items()) or "its rehearsal section"
