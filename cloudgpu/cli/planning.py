"""The plan of a command: made from a recipe with the options of the command, or read from the file of `--plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cloudgpu.app.planning import plan_files
from cloudgpu.app.planning.plan_files import PlanInputs, StoredPlan
from cloudgpu.app.planning.planner import Planned, PlanRequest, Preflight, make_plan, plan_error
from cloudgpu.app.planning.registry_images import RegistryImages
from cloudgpu.backends.lifecycle.existing_cluster import matches
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.cli.context import CliContext
from cloudgpu.cli.options.shared import PlanOptions, option_words
from cloudgpu.cli.options.train import SECRETS, EnvironmentOptions, TrainOptions, secrets_in_files
from cloudgpu.cli.render.plan import plan_lines, plan_summary, running_plan_lines
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.plan.network_access import network_request
from cloudgpu.plan.plan import Plan
from cloudgpu.state.catalog_snapshots import known_catalog
from cloudgpu.state.cluster_record import ClusterRecord
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


def find_reusable_cluster(context: CliContext, plan: Plan) -> str:
    """Return the name of the running cluster that `train` would reuse for this plan; empty if there is none."""
    record = running_cluster(context, plan, plan.recipe.name)
    return "" if record is None else record.name


def running_cluster(context: CliContext, plan: Plan, name: str) -> ClusterRecord | None:
    """Return the record of the cluster with this name if it is running and can run the plan."""
    record = context.records.cluster(name)
    if record is None or (record.state, record.identity.target) != ("up", plan.target):
        return None
    return record if record.lifecycle.expires_at > context.clock.now() and matches(plan, record) else None


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
    running = running_cluster(context, planned.plan, cluster) if cluster and not planned.plan.errors else None
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
