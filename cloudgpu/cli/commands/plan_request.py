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
from cloudgpu.ssh.keys import ensure_key
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


def requester(context: CliContext, *, preview: bool = False) -> Requester:
    """Return the owner and team to bill, the public key that nodes authorize, and existing resources to use.

    A preview creates no key and checks no access.

    Raises:
        UsageError: Nodes would not be reachable with the current settings.
    """
    settings = context.settings
    if not preview:
        context.backend().check_access()
    key = "" if preview else ensure_key(settings.ssh_key).line
    return Requester(settings.owner, settings.team, key, cluster_program_config(settings))


def find_reusable_cluster(context: CliContext, plan: Plan) -> str:
    """Return the name of the running cluster that `train` would reuse for this plan; empty if there is none."""
    record = context.records.cluster(plan.recipe.name)
    if record is None or (record.state, record.target) != ("up", plan.target):
        return ""
    return record.name if record.expires_at > context.clock.now() and matches(plan, record) else ""
