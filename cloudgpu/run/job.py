"""A run of a recipe on an inventory, its directories on the nodes, and the recipe in a run's record."""

from dataclasses import dataclass

from pydantic import ValidationError

from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command


@dataclass(frozen=True)
class Job:
    """A run of a recipe on the nodes of an inventory.

    Attributes:
        run_id: ID of the run.
        recipe: Resolved recipe, with parameters set and the rehearsal section applied.
        gang_token: Secret with which the agents authenticate to each other; never written to disk.
    """

    run_id: str
    recipe: Recipe
    inventory: Inventory
    gang_token: str

    def run_dir(self, home: str) -> str:
        """Return the directory of the run's logs and status on a node."""
        return f"{home}/.cloudgpu/runs/{self.run_id}"

    def workdir(self, home: str) -> str:
        """Return the path of the run's private copy of the work directory."""
        return f"{self.run_dir(home)}/work"

    def cache(self, home: str) -> str:
        """Return the path of the recipe's last uploaded work directory, from which every run makes its private copy."""
        return f"{home}/.cloudgpu/work/{self.recipe.name}"


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
