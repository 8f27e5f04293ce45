"""The part of the composition root for planning, on clouds and on self-managed hosts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudgpu.cli.context.local import environ, recipe_roots
from cloudgpu.paths import Home

if TYPE_CHECKING:
    from cloudgpu.app.planning.forecast import ResourceForecast
    from cloudgpu.app.planning.planner import Planned
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.plan.plan import Plan


def plan_recipe(
    wiring: "Wiring", recipe: str, sets: Sequence[str], *, offline: bool, all_regions: bool = False
) -> "Planned":
    """Plan a recipe on this command's target."""
    from cloudgpu.app.planning.planner import make_plan, network_request
    from cloudgpu.app.planning.preflight import Preflight
    from cloudgpu.state.cooldowns import Cooldowns

    target, settings = wiring.settings.target, wiring.settings
    checks_images = not offline and target != "rehearsal"  # rehearsal nodes do not run containers
    surveyor = Preflight(settings, environ(), wiring.registries.images if checks_images else None)
    today = wiring.clock.now().date()
    if target == "ssh":
        from cloudgpu.app.planning.hosts import make_host_plan

        return make_host_plan(
            recipe,
            sets,
            backend=wiring.hosts.backend,
            catalog=wiring.catalog,
            today=today,
            roots=recipe_roots(),
            surveyor=surveyor,
            offline=offline,
        )
    cloud = None if offline else lambda: wiring.cloud(target)
    return make_plan(
        recipe,
        sets,
        target=target,
        default_region=settings.region,
        today=today,
        roots=recipe_roots(),
        cloud=cloud,
        cooldowns=None if offline else Cooldowns(wiring.home, wiring.clock),
        network=network_request(settings),
        catalog=wiring.catalog,
        quota_headroom=wiring.quota_headroom,
        surveyor=surveyor,
        all_regions=all_regions,
    )


def forecast(wiring: "Wiring", plan: "Plan") -> "tuple[ResourceForecast, ...]":
    """Preview the resources that a plan would create for its first candidate. Changes nothing, not even SSH keys."""
    from cloudgpu.app.clusters.existing_resources import cluster_program_config
    from cloudgpu.app.planning.forecast import forecast
    from cloudgpu.backends.launch_request import Requester

    settings = wiring.settings
    requester = Requester(settings.owner, settings.team, "", cluster_program_config(settings))
    cloud, home = wiring.cloud(plan.target), Home(settings.home)
    return forecast(plan, plan.recipe.name, cloud=cloud, requester=requester, home=home, clock=wiring.clock)


def find_reusable_cluster(wiring: "Wiring", plan: "Plan") -> str:
    """Return the name of the running cluster that `train` would reuse for this plan; empty if there is none."""
    from cloudgpu.backends.reuse import matches

    record = wiring.records.cluster(plan.recipe.name)
    if record is None or (record.state, record.target) != ("up", plan.target):
        return ""
    return record.name if record.expires_at > wiring.clock.now() and matches(plan, record) else ""
