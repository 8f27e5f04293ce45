"""Plan a recipe: load and resolve the recipe, query the cloud, and rank the candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.app.planning.preflight import Preflight
from cloudgpu.app.planning.quota_headroom import QuotaHeadroom, headroom_by_quota
from cloudgpu.app.storage.overview import monthly_usd
from cloudgpu.backends.base import Cloud
from cloudgpu.catalog import Catalog
from cloudgpu.catalog import load as load_catalog
from cloudgpu.errors import BudgetError, CloudGpuError, PlanError, UsageError
from cloudgpu.plan import lookups, planner
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.plan import Plan, Quotes, Target
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import Seen, possibly_existing_storage
from cloudgpu.plan.storage_state import StorageSeen
from cloudgpu.recipe.loading import loader
from cloudgpu.recipe.loading.resolve import resolve
from cloudgpu.recipe.schema import Recipe
from cloudgpu.settings import Settings
from cloudgpu.state.cooldowns import Cooldowns

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.aws.storage.storage_tags import TaggedStorage


@dataclass(frozen=True)
class Planned:
    """A plan, the location of its recipe, and the planner's input."""

    plan: Plan
    path: Path
    base: Path
    question: PlannerInput
    """The planner's input."""


def make_plan(
    name: str,
    sets: Sequence[str],
    *,
    target: Target,
    default_region: str,
    today: date,
    roots: Sequence[Path],
    cloud: Callable[[], Cloud] | None,
    cooldowns: Cooldowns | None = None,
    network: NetworkRequest = NO_REQUEST,
    catalog: Catalog | None = None,
    quota_headroom: QuotaHeadroom | None = None,
    surveyor: Preflight | None = None,
    all_regions: bool = False,
) -> Planned:
    """Plan a recipe.

    If `cloud` is None, plan offline with the quotas cached by `quota_headroom`. Candidates with a recent capacity
    failure in `cooldowns` are tried last. `catalog` defaults to the bundled catalog. `surveyor` checks the resources
    that the recipe and the settings refer to. With `all_regions`, plan for every usable region, starting with the
    recipe's regions, and ignore the recipe's zones.

    Raises:
        RecipeError: The recipe is invalid.
        UsageError: A `--set` is not `name=value`.
        CloudError: A request to the cloud failed.
    """
    loaded = loader.load(loader.find(name, roots=roots))
    recipe = resolve(loaded, sets=read_sets(sets), rehearsal=target == "rehearsal")
    catalog = catalog or load_catalog()
    # All requests share one connection, because every new connection fetches credentials and builds clients again.
    connection = None if cloud is None else cloud()
    if all_regions:
        recipe = with_all_regions(recipe, catalog.regions if connection is None else _usable(connection, catalog))
    known = lookups.known_regions(recipe, catalog, default_region)
    quotes = Quotes()
    if surveyor is not None:
        inspector = None if connection is None else connection.inspector()
        quotes = replace(quotes, survey=surveyor.survey(recipe, loaded.base, known, inspector))
    enabled = quotes.survey.enabled_regions
    # A region that is not enabled rejects the credentials as invalid. Do not query it; a plan rule excludes it.
    usable = tuple(region for region in known if enabled is None or region in enabled)
    if connection is not None:
        quotes = _with_cloud_quotes(
            PlannerInput(recipe, target, catalog, quotes, default_region, today, network), connection, usable
        )
        quotes = quotes if cooldowns is None else replace(quotes, refused=cooldowns.recent(connection))
    if quota_headroom is not None:
        headroom = (
            quota_headroom.cached(target, known) if connection is None else quota_headroom.asked(connection, usable)
        )
        quotes = replace(quotes, quotas=headroom_by_quota(headroom))
    question = PlannerInput(recipe, target, catalog, quotes, default_region, today, network)
    return Planned(planner.build_plan(question), loaded.path, loaded.base, question)


def _with_cloud_quotes(question: PlannerInput, cloud: Cloud, regions: Sequence[str]) -> Quotes:
    """Query the zones, images, storage and free addresses in these regions, and add them to the quotes.

    The plan contains image IDs rather than SSM parameters, so that a newer image does not change a saved plan.

    Raises:
        CloudError: A request to the cloud failed.
    """
    recipe, catalog, default = question.recipe, question.catalog, question.default_region
    offers = [offer for offer in lookups.offers_to_query(recipe, catalog, default) if offer[1] in regions]
    parameters = [image for image in lookups.images_to_resolve(recipe, catalog, default) if image[1] in regions]
    quotes = replace(
        cloud.quotes(offers),
        images=cloud.images(parameters),
        storage=find_existing_storage(cloud, recipe, regions),
        survey=question.quotes.survey,
    )
    if recipe.resources.reservation:
        reservation = cloud.reservation(recipe.resources.reservation, regions)
        quotes = replace(quotes, reservation=reservation.found, asked_at=reservation.asked_at)
    limited = lookups.regions_needing_elastic_ips(recipe, catalog, default, question.network)
    limited_here = [region for region in limited if region in regions]
    return replace(quotes, free_addresses=cloud.free_addresses(limited_here)) if limited_here else quotes


def find_existing_storage(cloud: Cloud, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """Return the existing storage in these regions for each storage name that the recipe mounts.

    Raises:
        CloudError: A region cannot be queried.
    """
    names = [mount.name for mount in possibly_existing_storage(recipe)]
    if not names:
        return {}
    stores = cloud.storage()
    stored = [storage for region in regions for storage in stores.found(region)]
    return {name: tuple(_storage_seen(storage) for storage in stored if storage.name == name) for name in names}


def _storage_seen(storage: TaggedStorage) -> StorageSeen:
    return StorageSeen(
        name=storage.name,
        kind=storage.kind,
        region=storage.region,
        zone=storage.data.zone if storage.data else "",
        ready=storage.data is not None and storage.data.ready,
        owner=storage.tag("cloudgpu:owner"),
        users=storage.users,
        monthly_usd=monthly_usd(storage),
    )


def with_all_regions(recipe: Recipe, regions: Sequence[str]) -> Recipe:
    """Return the recipe with all of these regions and without zones. The recipe's own regions stay first."""
    named = [region for region in recipe.resources.regions if region in regions]
    resources = recipe.resources.model_copy(update={"regions": tuple(dict.fromkeys([*named, *regions])), "zones": ()})
    return recipe.model_copy(update={"resources": resources})


def _usable(cloud: Cloud, catalog: Catalog) -> tuple[str, ...]:
    """Return the catalog regions that the account can use."""
    enabled = set(cloud.regions())
    return tuple(region for region in catalog.regions if region in enabled)


def network_request(settings: Settings) -> NetworkRequest:
    """Convert the network settings to the planner's input."""
    return NetworkRequest(
        public_address=settings.public_address,
        own_subnet=bool(settings.subnet_id),
        own_network=bool(settings.vpc_id or settings.subnet_id or settings.security_group_id),
        reach=settings.reach,
        bastion=settings.bastion,
        caller_named=bool(settings.ssh_cidr),
        own_group=bool(settings.security_group_id),
    )


def read_sets(sets: Sequence[str]) -> dict[str, str]:
    """Parse the `name=value` pairs of `--set`.

    Raises:
        UsageError: A pair has no name or no `=`.
    """
    pairs = {}
    for pair in sets:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            message = f"--set {pair}: expected NAME=VALUE"
            raise UsageError(message, hint="use the form `--set epochs=3`")
        pairs[name.strip()] = value
    return pairs


def plan_error(plan: Plan) -> CloudGpuError:
    """Return the error for a plan with error findings: a `BudgetError` if the budget is the only obstacle."""
    lines = [f"{f.check}: {f.message}{f' (fix: {f.first_fix})' if f.first_fix else ''}" for f in plan.errors]
    hint = plan.remedies[0].command if plan.remedies else plan.errors[0].first_fix
    if all(finding.check == "budget" for finding in plan.errors):
        return BudgetError(plan.errors[0].message, hint=hint)
    return PlanError(f"recipe {plan.recipe.name} cannot run as planned", findings=lines, hint=hint)
