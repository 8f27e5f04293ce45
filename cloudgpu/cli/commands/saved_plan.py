"""The plan that `up` and `train` apply: made from a recipe, or read from a file with `--plan FILE`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudgpu.app.planning import plan_files
from cloudgpu.app.planning.planner import Planned, plan_error
from cloudgpu.cli.commands.option_groups import PlanOptions
from cloudgpu.cli.commands.plan_request import plan_recipe
from cloudgpu.cli.context import CliContext
from cloudgpu.cli.render.plan import plan_lines
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home
from cloudgpu.plan.saved_plan import PlanInputs, StoredPlan
from cloudgpu.targets import as_target


@dataclass(frozen=True)
class PlanSource:
    """The source of a plan: a recipe with its assignments, or a saved plan."""

    target: str | None
    region: str | None
    recipe: str
    sets: tuple[str, ...]
    file: Path | None = None
    stored: StoredPlan | None = None

    def planned(self, context: CliContext) -> Planned:
        """Return a new plan, or the saved plan if its inputs have not changed.

        Raises:
            PlanError: The inputs of the saved plan have changed.
            CloudGpuError: The recipe cannot be planned.
        """
        if self.file is not None and self.stored is not None:
            return _confirmed_plan(context, self.file, self.stored)
        return plan_recipe(context, self.recipe, self.sets, offline=False)


def select_plan_source(options: PlanOptions, recipe: str, **where: str | None) -> PlanSource:
    """Return the plan source that the command line selects. `where` contains the options `on` and `region`.

    Raises:
        UsageError: Neither a recipe nor a file is given, or an option is given that the file already sets.
    """
    options.require_recipe(recipe)
    file = options.plan
    if file is None:
        return PlanSource(where["on"], where["region"], recipe, tuple(options.assignments))
    given: dict[str, Any] = {
        "RECIPE": recipe,
        "--set": options.sets,
        "--prefer": options.prefer,
        **{f"--{name}": value for name, value in where.items()},
    }
    repeated = [name for name, value in given.items() if value]
    if repeated:
        listed = ", ".join(repeated)
        raise UsageError(f"--plan {file} already sets {listed}", hint=f"remove --plan, or remove {listed}")
    stored = plan_files.load(file)
    return PlanSource(stored.world.target, stored.region, stored.recipe, stored.sets, file, stored)


def show_plan(planned: Planned, cluster: str, context: CliContext) -> None:
    """Show the plan before the confirmation prompt.

    Raises:
        CloudGpuError: The plan has errors, so it cannot be applied.
    """
    context.screen.lines(plan_lines(planned.plan, cluster))
    if planned.plan.errors:
        raise plan_error(planned.plan)


def current_plan_inputs(context: CliContext, planned: Planned, file: Path) -> PlanInputs:
    """Return the inputs of a plan, to save in the plan file or to compare with it."""
    return plan_files.collect_plan_inputs(
        planned, context.backend(as_target(planned.plan.target)), Home(context.settings.home), file
    )


def _confirmed_plan(context: CliContext, file: Path, stored: StoredPlan) -> Planned:
    """Return the plan of a file.

    Raises:
        PlanError: The inputs of the plan have changed.
    """
    fresh = plan_recipe(context, stored.recipe, stored.sets, offline=False)
    return plan_files.verify_saved_plan(file, stored, fresh, current_plan_inputs(context, fresh, file))
