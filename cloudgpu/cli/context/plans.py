"""The part of the composition that makes plans: of what is bought, and of hosts of one's own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudgpu.errors import UsageError
from cloudgpu.paths import Home

if TYPE_CHECKING:
    from cloudgpu.app.planning.forecast import Forecast
    from cloudgpu.app.planning.planner import Planned
    from cloudgpu.cli.context.wiring import Wiring
    from cloudgpu.plan.plan import Plan


def planned(
    wiring: "Wiring", recipe: str, sets: Sequence[str], *, offline: bool, all_regions: bool = False
) -> "Planned":
    """The plan of a recipe on this command's target."""
    from cloudgpu.app.planning.planner import make_plan, network_request
    from cloudgpu.app.planning.preflight import Preflight
    from cloudgpu.cli.context.wiring import environ, recipe_roots
    from cloudgpu.state.cooldowns import Cooldowns

    target, settings = wiring.settings.target, wiring.settings
    asks = not offline and target != "rehearsal"  # nodes of a rehearsal run no container
    surveyor = Preflight(settings, environ(), wiring.registries.images if asks else None)
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
        rooms=wiring.quota_rooms,
        surveyor=surveyor,
        all_regions=all_regions,
    )


def forecast(wiring: "Wiring", plan: "Plan") -> "tuple[Forecast, ...]":
    """Exactly what a plan would make at its first candidate; nothing is changed, not even a key made."""
    from cloudgpu.app.clusters.existing_resources import for_clusters
    from cloudgpu.app.planning.forecast import forecast
    from cloudgpu.backends.launch_request import Requester

    settings = wiring.settings
    requester = Requester(settings.owner, settings.team, "", for_clusters(settings))
    cloud, home = wiring.cloud(plan.target), Home(settings.home)
    return forecast(plan, plan.recipe.name, cloud=cloud, requester=requester, home=home, clock=wiring.clock)


def find_reusable_cluster(wiring: "Wiring", plan: "Plan") -> str:
    """The cluster that a `train` of this plan uses without being told; empty when it makes one of its own."""
    from cloudgpu.backends.reuse import matches

    record = wiring.records.cluster(plan.recipe.name)
    if record is None or (record.state, record.target) != ("up", plan.target):
        return ""
    return record.name if record.expires_at > wiring.clock.now() and matches(plan, record) else ""


def only_cluster(wiring: "Wiring") -> str:
    """The one cluster that is up; empty when there is none.

    Raises:
        UsageError: There are several.
    """
    names = [record.name for record in wiring.records.clusters()]
    if len(names) > 1:
        message = f"several clusters are up: {', '.join(names)}"
        raise UsageError(message, hint="name the one that is meant")
    return names[0] if names else ""
