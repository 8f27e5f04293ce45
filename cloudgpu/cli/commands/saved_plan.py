"""What `up` and `train` are to carry out: a recipe of the command line, or the plan that `--plan FILE` names."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.cli.commands.options import preferring
from cloudgpu.errors import UsageError

if TYPE_CHECKING:
    from cloudgpu.app.planning.planner import Planned
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.plan.stored import PlanInputs, StoredPlan


@dataclass(frozen=True)
class GpuQuery:
    """One of the two."""

    target: str | None
    region: str | None
    recipe: str
    sets: tuple[str, ...]
    file: Path | None = None
    stored: "StoredPlan | None" = None

    def planned(self, wiring: "Wiring") -> "Planned":
        """The plan, made now or agreed to before.

        Raises:
            PlanError: The world has changed since it was agreed to.
            CloudGpuError: It cannot be made.
        """
        if self.file is not None and self.stored is not None:
            return _agreed(wiring, self.file, self.stored)
        return wiring.planned(self.recipe, self.sets, offline=False)


def asked(file: Path | None, recipe: str, sets: list[str] | None, prefer: str | None, **where: str | None) -> GpuQuery:
    """What the command line asks for. `where` has `on` and `region`.

    Raises:
        UsageError: Neither recipe nor file is named, or the file and something that it holds already.
    """
    if file is None:
        if not recipe:
            raise UsageError("missing argument RECIPE", hint="name a recipe, or a plan with --plan FILE")
        return GpuQuery(where["on"], where["region"], recipe, tuple(preferring(sets, prefer)))
    given = {"RECIPE": recipe, "--set": sets, "--prefer": prefer, **{f"--{name}": one for name, one in where.items()}}
    doubled = [name for name, value in given.items() if value]
    if doubled:
        raise UsageError(f"--plan {file} holds {', '.join(doubled)} already", hint="leave one of them out")
    from cloudgpu.app.planning.plan_files import load

    stored = load(file)
    return GpuQuery(stored.world.target, stored.region, stored.recipe, stored.sets, file, stored)


def show(planned: "Planned", cluster: str, wiring: "Wiring") -> None:
    """Show the plan before anybody is asked; nobody is asked about one that cannot be applied.

    Raises:
        CloudGpuError: It holds an error finding.
    """
    from cloudgpu.app.planning.planner import refuse
    from cloudgpu.cli.render.plan import plan_lines

    wiring.screen.lines(plan_lines(planned.plan, cluster))
    if planned.plan.errors:
        raise refuse(planned.plan)


def world_of(wiring: "Wiring", planned: "Planned", file: Path) -> "PlanInputs":
    """What a plan that is kept in this file was made from."""
    from cloudgpu.app.planning import plan_files
    from cloudgpu.paths import Home

    return plan_files.world_of(planned, wiring.cloud(planned.plan.target), Home(wiring.settings.home), file)


def _agreed(wiring: "Wiring", file: Path, stored: "StoredPlan") -> "Planned":
    """The plan of a file, where the world is still the one it was made in."""
    from cloudgpu.app.planning import plan_files

    fresh = wiring.planned(stored.recipe, stored.sets, offline=False)
    return plan_files.agreed(file, stored, fresh, world_of(wiring, fresh, file))
