"""Read the recipe of a run from its record."""

from pydantic import ValidationError

from cloudgpu.errors import StateError
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command


def recipe_of(record: RunRecord) -> Recipe:
    """Return the recipe with which a run was started.

    Raises:
        StateError: The record contains no valid recipe, for example because another version of cloudgpu wrote it.
    """
    try:
        return Recipe.model_validate(record.resolved)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "recipe"
        message = f"the recipe in the record of run {record.run_id} cannot be read: {field}: {first['msg']}"
        hint = f"delete the run's cluster with `{command('cloudgpu', 'down', '--run', record.run_id)}`"
        raise StateError(message, hint=hint) from err
