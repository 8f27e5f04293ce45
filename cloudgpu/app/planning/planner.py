"""From a recipe's name to a plan: load, resolve, ask the cloud what it offers, plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from cloudgpu.app.planning.preflight import Preflight
from cloudgpu.app.planning.quota_headroom import QuotaHeadroom
from cloudgpu.app.planning.quota_headroom import rooms as rooms_of
from cloudgpu.app.planning.storage_lookup import seen
from cloudgpu.backends.base import Cloud
from cloudgpu.catalog import Catalog
from cloudgpu.catalog import load as load_catalog
from cloudgpu.errors import BudgetError, CloudGpuError, PlanError, UsageError
from cloudgpu.plan import lookups, planner
from cloudgpu.plan.plan import Plan, Quotes, Target
from cloudgpu.plan.question import Question
from cloudgpu.plan.reaching import NO_REQUEST, NetworkRequest
from cloudgpu.recipe import loading
from cloudgpu.recipe.resolve import resolve
from cloudgpu.recipe.schema import Recipe
from cloudgpu.settings import Settings
from cloudgpu.state.cooldowns import Cooldowns


@dataclass(frozen=True)
class Planned:
    """A plan and where its recipe lies."""

    plan: Plan
    path: Path
    base: Path
    question: Question
    """What the plan answers."""


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
    rooms: QuotaHeadroom | None = None,
    surveyor: Preflight | None = None,
    all_regions: bool = False,
) -> Planned:
    """Plan a recipe; `cloud` None means offline. What `cooldowns` remembers is tried last.

    `catalog` is what is known of types and prices, by default what came with cloudgpu; `rooms` tells what quotas leave,
    offline as it was told last; `surveyor` looks at what the recipe names. With `all_regions` the recipe's own regions
    and zones do not bind it.

    Raises:
        RecipeError: The recipe is wrong.
        UsageError: A `--set` is not `name=value`.
        CloudError: The cloud could not be asked.
    """
    loaded = loading.load(loading.find(name, roots=roots))
    recipe = resolve(loaded, sets=read_sets(sets), rehearsal=target == "rehearsal")
    catalog = catalog or load_catalog()
    # One connection for all questions: every other one would fetch credentials and build clients anew.
    there = None if cloud is None else cloud()
    if all_regions:
        recipe = everywhere(recipe, catalog.regions if there is None else _usable(there, catalog))
    known = lookups.known_regions(recipe, catalog, default_region)
    quotes = Quotes()
    if surveyor is not None:
        inspector = None if there is None else there.inspector()
        quotes = replace(quotes, survey=surveyor.survey(recipe, loaded.base, known, inspector))
    enabled = quotes.survey.enabled_regions
    # A region that is not enabled answers that the credentials are wrong: it is not asked, and a rule throws it out.
    usable = tuple(region for region in known if enabled is None or region in enabled)
    if there is not None:
        quotes = _asked(Question(recipe, target, catalog, quotes, default_region, today, network), there, usable)
        quotes = quotes if cooldowns is None else replace(quotes, refused=cooldowns.recent(there))
    if rooms is not None:
        told = rooms.remembered(target, known) if there is None else rooms.asked(there, usable)
        quotes = replace(quotes, quotas=rooms_of(told))
    question = Question(recipe, target, catalog, quotes, default_region, today, network)
    return Planned(planner.answer(question), loaded.path, loaded.base, question)


def _asked(question: Question, cloud: Cloud, regions: Sequence[str]) -> Quotes:
    """The question's quotes with what the cloud says, in these regions, of zones, images, storage and addresses.

    The plan names images, not parameters: a newer one behind a parameter must not change what was agreed to.

    Raises:
        CloudError: It could not be asked.
    """
    recipe, catalog, default = question.recipe, question.catalog, question.default_region
    offers = [one for one in lookups.wanted_offers(recipe, catalog, default) if one[1] in regions]
    parameters = [one for one in lookups.wanted_images(recipe, catalog, default) if one[1] in regions]
    quotes = replace(
        cloud.quotes(offers),
        images=cloud.images(parameters),
        storage=seen(cloud, recipe, regions),
        survey=question.quotes.survey,
    )
    if recipe.resources.reservation:
        held = cloud.reservation(recipe.resources.reservation, regions)
        quotes = replace(quotes, reservation=held.found, asked_at=held.asked_at)
    addresses = [one for one in lookups.wanted_addresses(recipe, catalog, default, question.network) if one in regions]
    return replace(quotes, free_addresses=cloud.free_addresses(addresses)) if addresses else quotes


def everywhere(recipe: Recipe, regions: Sequence[str]) -> Recipe:
    """The recipe in all of these regions, those that it names first; its zones bind it no more."""
    own = [region for region in recipe.resources.regions if region in regions]
    resources = recipe.resources.model_copy(update={"regions": tuple(dict.fromkeys([*own, *regions])), "zones": ()})
    return recipe.model_copy(update={"resources": resources})


def _usable(cloud: Cloud, catalog: Catalog) -> tuple[str, ...]:
    """Regions that the account can use and the catalogue knows."""
    enabled = set(cloud.regions())
    return tuple(region for region in catalog.regions if region in enabled)


def network_request(settings: Settings) -> NetworkRequest:
    """What the settings say of the network, for the plan."""
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
    """`name=value` pairs of the command line.

    Raises:
        UsageError: One has no `=`.
    """
    pairs = {}
    for one in sets:
        name, equals, value = one.partition("=")
        if not equals or not name:
            message = f"--set {one}: expected NAME=VALUE"
            raise UsageError(message, hint="for instance --set epochs=3")
        pairs[name.strip()] = value
    return pairs


def refuse(plan: Plan) -> CloudGpuError:
    """The error that a plan with error findings ends with: the budget's own when only the budget forbids it."""
    lines = [f"{f.check}: {f.message}{f' (fix: {f.cure})' if f.cure else ''}" for f in plan.errors]
    hint = plan.remedies[0].command if plan.remedies else plan.errors[0].cure
    if all(finding.check == "budget" for finding in plan.errors):
        return BudgetError(plan.errors[0].message, hint=hint)
    return PlanError(f"recipe {plan.recipe.name} cannot run as planned", findings=lines, hint=hint)
