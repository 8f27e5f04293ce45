"""A run of a recipe on an inventory, and its directories on the nodes."""

from dataclasses import dataclass

from cloudgpu.launch.inventory import Inventory
from cloudgpu.recipe.schema import Recipe


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
