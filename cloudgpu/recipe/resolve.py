"""A loaded recipe as it will be carried out: rehearsal stanza applied, then what the caller set."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.assignment import assign
from cloudgpu.recipe.loading import LoadedRecipe, check
from cloudgpu.recipe.plain import plain
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import command


def resolve(loaded: LoadedRecipe, *, sets: Mapping[str, str], rehearsal: bool) -> Recipe:
    """The recipe with `--set` assignments and, when rehearsed, its rehearsal stanza.

    What the caller sets wins over the stanza, for it was typed last. The stanza itself stays in the recipe, since
    its objects are still to be put in place.

    Raises:
        RecipeError: An assignment names nothing, has the wrong type, or makes the recipe wrong.
    """
    values = plain(loaded.recipe)
    stanza = {name: text for name, text in sets.items() if name.startswith("rehearsal.")}
    _assign(values, stanza)
    if rehearsal:
        _rehearse(values)
    _assign(values, {name: text for name, text in sets.items() if name not in stanza})
    recipe, problems = check(values, loaded.base)
    if recipe is None or problems:
        lines = [problem.text for problem in problems]
        message = f"the recipe {loaded.recipe.name} is wrong with {_shown(sets)}"
        show = command("cloudgpu", "recipe", "show", str(loaded.path))
        raise RecipeError(message, problems=lines, hint=f"{show} shows what may be set")
    return recipe


def _assign(values: dict[str, Any], sets: Mapping[str, str]) -> None:
    for name, text in sets.items():
        assign(values, name, text)


def _rehearse(values: dict[str, Any]) -> None:
    """Lay the stanza over the plain values; absent fields stay as they are."""
    stanza = values.get("rehearsal") or {}
    if stanza.get("environment") is not None:
        values["environment"] = stanza["environment"]
    for field in ("command", "ranks_per_node"):
        if stanza.get(field) is not None:
            values["launch"][field] = stanza[field]
    values.setdefault("params", {}).update(stanza.get("params") or {})
    for data in values.get("data") or []:
        _stand_in(data, stanza.get("objects") or {})


def _stand_in(data: dict[str, Any], objects: Mapping[str, str]) -> None:
    """What a rehearsal has no server for is copied from what stands in for it; S3 it has."""
    if data["from"] in objects and not data["from"].startswith("s3://"):
        kept: dict[str, Any] = {name: data[name] for name in ("name", "to", "keep") if name in data}
        place = objects[data["from"]]
        data.clear()
        data.update({**kept, "from": place})


def _shown(sets: Mapping[str, str]) -> str:
    return " ".join(command("--set", f"{name}={text}") for name, text in sets.items()) or "its rehearsal stanza"
