"""Plan a recipe with the options and settings of a command."""

from collections.abc import Sequence
from pathlib import Path

from cloudgpu.app.planning.planner import Planned, PlanRequest, make_plan, network_request
from cloudgpu.app.planning.preflight import Preflight
from cloudgpu.app.planning.registry.images import RegistryImages
from cloudgpu.backends.aws.existing_resources import cluster_program_config
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.reuse import matches
from cloudgpu.cli.context import CliContext
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.plan.plan import Plan
from cloudgpu.state.known_catalog import known_catalog
from cloudgpu.targets import is_simulated


def recipe_roots() -> tuple[Path, ...]:
    """Return the folders that are searched for recipe names: `./recipes`, then the bundled recipes."""
    return (Path.cwd() / "recipes", bundled_folder("recipes"))


def plan_recipe(
    context: CliContext, recipe: str, sets: Sequence[str], *, offline: bool, all_regions: bool = False
) -> Planned:
    """Plan a recipe on this command's target."""
    settings, backend, environ = context.settings, context.backend(), context.environment.environ
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
    )
    return make_plan(request, backend)


def preview_requester(context: CliContext) -> Requester:
    """Return the owner, the team and the existing resources to use, without a key, which a preview does not create."""
    settings = context.settings
    return Requester(settings.owner, settings.team, "", cluster_program_config(settings))


def find_reusable_cluster(context: CliContext, plan: Plan) -> str:
    """Return the name of the running cluster that `train` would reuse for this plan; empty if there is none."""
    record = context.records.cluster(plan.recipe.name)
    if record is None or (record.state, record.target) != ("up", plan.target):
        return ""
    return record.name if record.expires_at > context.clock.now() and matches(plan, record) else ""
