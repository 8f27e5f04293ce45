"""The plan of a command: made from a recipe with the options of the command, or read from the file of `--plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from cloudgpu.app.planning import plan_files
from cloudgpu.app.planning.image_check import RegistryImages
from cloudgpu.app.planning.plan_files import PlanInputs, StoredPlan
from cloudgpu.app.planning.planner import Planned, PlanRequest, Preflight, find_reusable_cluster, make_plan, plan_error
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.cli.context import CliContext
from cloudgpu.cli.options import PlanOptions, option_words
from cloudgpu.cli.render.plan import plan_lines, plan_summary, running_plan_lines
from cloudgpu.cli.train_options import SECRETS, EnvironmentOptions, TrainOptions, secrets_in_files
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.plan.network_access import network_request
from cloudgpu.state.catalog_snapshots import known_catalog
from cloudgpu.targets import as_target, is_simulated
from cloudgpu.text import command

_NO_SECRETS: Final[Mapping[str, str]] = {}
NO_OPTIONS: Final = EnvironmentOptions()


def recipe_roots() -> tuple[Path, ...]:
    """Return the folders in which recipes are looked up by name: `./recipes`, then the bundled recipes."""
    return (Path.cwd() / "recipes", bundled_folder("recipes"))


def plan_recipe(
    context: CliContext,
    recipe: str,
    sets: Sequence[str],
    *,
    offline: bool,
    all_regions: bool = False,
    secrets: Mapping[str, str] = _NO_SECRETS,
) -> Planned:
    """Plan a recipe for this command's target.

    `sets` contains assignments such as `resources.nodes=2`, and `secrets` values that are not in the environment.
    """
    settings, backend = context.settings, context.backend()
    environ = {**context.environment.environ, **secrets}
    # Rehearsal nodes do not run containers, so their images are not looked up.
    asks_registry = not offline and not is_simulated(settings.target)
    registry = RegistryImages(environ, backend.registry_login) if asks_registry else None
    request = PlanRequest(
        recipe=recipe,
        catalog=known_catalog(Home(settings.home), settings.target),
        today=context.clock.now().date(),
        default_region=settings.region,
        roots=recipe_roots(),
        sets=sets,
        network=network_request(settings),
        preflight=Preflight(settings, environ, registry),
        offline=offline,
        all_regions=all_regions,
        engine=settings.engine,
        allowed=settings.allowed_paths,
    )
    return make_plan(request, backend)


def preview_requester(context: CliContext) -> Requester:
    """Return the requester for a preview. The public key is empty, because a preview does not create a key pair."""
    settings = context.settings
    return Requester(settings.owner, settings.team, "")


def requester(context: CliContext) -> Requester:
    """Return the owner and the team to bill, and the public key that nodes authorize."""
    from cloudgpu.ssh.keys import ensure_key  # noqa: PLC0415 - imports cryptography, which `plan` does not need

    context.backend().check_access()
    return replace(preview_requester(context), public_key=ensure_key(context.settings.ssh_key).line)


@dataclass(frozen=True)
class PlanSource:
    """The source of a plan: a recipe with `--set` assignments, or a saved plan."""

    target: str | None
    region: str | None
    recipe: str
    sets: tuple[str, ...]
    file: Path | None = None
    stored: StoredPlan | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values of secrets from files, which the registry login may need."""
    allow_outside: bool = False
    """Whether the recipe may upload files outside its folder."""

    def planned(self, context: CliContext) -> Planned:
        """Plan the recipe, or return the saved plan after checking that its inputs have not changed."""
        if self.file is not None and self.stored is not None:
            return _confirmed_plan(context, self, self.file, self.stored)
        return plan_recipe(context, self.recipe, self.sets, offline=False, secrets=self.secrets)

    @property
    def plan_command(self) -> str:
        """The command that shows the whole plan."""
        options = {"--on": self.target, "--region": self.region}
        words = [word for name, value in options.items() if value for word in (name, value)]
        sets = [word for assignment in self.sets for word in ("--set", assignment)]
        outside = ["--allow-outside"] if self.allow_outside else []
        return command("cloudgpu", "plan", self.recipe, *words, *sets, *outside)


def repeated_options(options: TrainOptions, source: PlanSource) -> tuple[str, ...]:
    """Return the options that start the same run again. For a saved plan, they contain what the plan was made from.

    The axes of a matrix are left out: each of its runs adds its own values.
    """
    # These options select nothing that a later run has to repeat: the plan file may no longer apply by then.
    once = {"plan", "matrix", "yes", "detach", "on_interrupt", "install_pulumi", "verbose", "json"}
    if source.file is None:
        return option_words(options, once)
    given = {secret.name for secret in options.environment.secrets}
    words = ["--on", source.target or "", "--region", source.region or ""]
    for assignment in source.sets:
        if assignment.startswith(SECRETS):  # a second assignment would replace it
            names = assignment.removeprefix(SECRETS).split(",")
            words += [word for name in names if name not in given for word in ("--secret", name)]
        else:
            words += ["--set", assignment]
    return (*words, *option_words(options, once))


def select_plan_source(
    options: PlanOptions, recipe: str, environment: EnvironmentOptions = NO_OPTIONS, **where: str | None
) -> PlanSource:
    """Return the plan source that the command line selects. `where` contains the options `on` and `region`."""
    options.require_recipe(recipe)
    file = options.plan
    if file is None:
        sets = (*options.assignments, *environment.assignments)
        secrets = secrets_in_files(environment.secrets)
        outside = options.allow_outside
        return PlanSource(where["on"], where["region"], recipe, sets, secrets=secrets, allow_outside=outside)
    given: dict[str, Any] = {
        "RECIPE": recipe,
        "--set": options.sets,
        "--prefer": options.prefer,
        "--env": environment.env,
        "--env-file": environment.env_file,
        **{f"--{name}": value for name, value in where.items()},
    }
    repeated = [name for name, value in given.items() if value]
    if repeated:
        listed = ", ".join(repeated)
        raise UsageError(f"--plan {file} already sets {listed}", hint=f"remove --plan, or remove {listed}")
    stored = plan_files.load(file)
    secrets = secrets_in_files(environment.secrets)
    outside = options.allow_outside
    return PlanSource(stored.world.target, stored.region, stored.recipe, stored.sets, file, stored, secrets, outside)


def show_plan(planned: Planned, cluster: str, context: CliContext, source: PlanSource) -> None:
    """Show the plan before the confirmation prompt: in a few lines on a terminal, unless the command is verbose.

    The plan for a cluster that is already running is one line.
    """
    width = context.screen.width
    running = None
    if cluster and not planned.plan.errors:
        running = find_reusable_cluster(context.records, context.clock, planned.plan, cluster)
    if running is not None:
        context.screen.lines(running_plan_lines(planned.plan, running, context.clock.now(), width))
    elif context.screen.compact and not planned.plan.errors:
        context.screen.lines(plan_summary(planned.plan, cluster, source.plan_command, width))
    else:
        context.screen.lines(plan_lines(planned.plan, cluster, width))
    if planned.plan.errors:
        error = plan_error(planned.plan)
        several = len(planned.plan.errors) > 1
        error.summary = f"recipe {planned.plan.recipe.name} cannot run as planned: see the error{'s' * several} above"
        raise error


def current_plan_inputs(context: CliContext, planned: Planned, file: Path) -> PlanInputs:
    """Return the inputs of a plan, to save in `file` or to compare with the inputs saved there."""
    return plan_files.collect_plan_inputs(
        planned, context.backend(as_target(planned.plan.target)), Home(context.settings.home), file
    )


def _confirmed_plan(context: CliContext, source: PlanSource, file: Path, stored: StoredPlan) -> Planned:
    """Return a saved plan after checking that its inputs have not changed."""
    plan_files.require_signature(file, stored, Home(context.settings.home))
    fresh = plan_recipe(context, stored.recipe, stored.sets, offline=False, secrets=source.secrets)
    return plan_files.verify_saved_plan(file, stored, fresh, current_plan_inputs(context, fresh, file))
