"""The recipe of a run, read back from its record."""

from pydantic import ValidationError

from cloudgpu.errors import StateError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.records import RunRecord
from cloudgpu.text import command


def recipe_of(record: RunRecord) -> Recipe:
    """Return the recipe that a run was started with.

    Raises:
        StateError: The record does not hold one, or another version of cloudgpu wrote it.
    """
    try:
        return Recipe.model_validate(record.resolved)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the whole of it"
        message = f"the recipe in the record of run {record.run_id} cannot be read: {field}: {first['msg']}"
        hint = f"{command('cloudgpu', 'down', '--run', record.run_id)} ends its cluster"
        raise StateError(message, hint=hint) from err
