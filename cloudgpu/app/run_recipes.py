"""The recipe that a run was started with, as its record holds it."""

from cloudgpu.app.records import RunRecord
from cloudgpu.decoding import malformed_as
from cloudgpu.errors import StateError
from cloudgpu.recipe.schema import Recipe


def recipe_of(record: RunRecord) -> Recipe:
    """Return the recipe of a run.

    Raises:
        StateError: The record holds none that this version can read.
    """
    with malformed_as(lambda _: _unreadable(record)):
        return Recipe.model_validate(record.resolved)


def _unreadable(record: RunRecord) -> StateError:
    message = f"the record of run {record.run_id} holds no recipe that can be read"
    return StateError(message, hint="use the version of cloudgpu that started it, or start the run anew")
