"""A run on an inventory, as a value: which directories it has on the nodes and how it is addressed."""

from dataclasses import dataclass

from cloudgpu.launch.inventory import Inventory
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Job:
    """One attempt of one run.

    Attributes:
        run_id: The run.
        recipe: Resolved: parameters set, rehearsal stanza applied.
        gang_token: Shared by the agents to know each other; in memory and on standard input only.
    """

    run_id: str
    recipe: Recipe
    inventory: Inventory
    gang_token: str

    def run_dir(self, home: str) -> str:
        """Logs and status of the run on a node."""
        return f"{home}/.cloudgpu/runs/{self.run_id}"

    def workdir(self, home: str) -> str:
        """The run's own copy of the work directory."""
        return f"{self.run_dir(home)}/work"

    def cache(self, home: str) -> str:
        """The work directory as last sent; a run copies it, so that simultaneous runs do not see each other."""
        return f"{home}/.cloudgpu/work/{self.recipe.name}"
