"""Plan a recipe with the options and settings of a command."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cloudgpu.app.planning.planner import Planned, PlanRequest, Preflight, make_plan
from cloudgpu.app.planning.registry_images import RegistryImages
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.reuse import matches
from cloudgpu.cli.context import CliContext
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.plan.network_access import network_request
from cloudgpu.plan.plan import Plan
from cloudgpu.state.catalog_snapshots import known_catalog
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.targets import is_simulated

_NO_SECRETS: Final[Mapping[str, str]] = {}


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
