"""Plan a recipe: load and resolve the recipe, query the cloud, and rank the candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from cloudgpu.app.planning.preflight import Preflight
from cloudgpu.app.planning.recipe_check import changed_params
from cloudgpu.backends.base import Backend
from cloudgpu.catalog import Catalog
from cloudgpu.errors import BudgetError, CloudGpuError, PlanError, UsageError
from cloudgpu.plan import planner
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.schema import Recipe
from cloudgpu.targets import is_simulated


@dataclass(frozen=True)
class Planned:
    """A plan, the path and directory of its recipe, and the planner's input."""

    plan: Plan
    path: Path
    base: Path
    question: PlannerInput
    """The planner's input, including the responses of the cloud."""


@dataclass(frozen=True)
class PlanRequest:
    """The recipe to plan, and the options of the plan.

    Attributes:
        recipe: Name or path of the recipe.
        sets: `name=value` pairs of `--set`.
        roots: Folders that are searched for recipe names.
        preflight: Checks of the resources that the recipe and the settings refer to; None to skip the checks.
        offline: Whether to use only the catalog and local caches, without network access.
        engine: Engine that would create the cluster, `direct` or `pulumi`.
        allowed: Files and folders outside its own folder that the recipe may read.
        all_regions: Whether to plan for every usable region, starting with the recipe's, and ignore the recipe's zones.
    """

    recipe: str
    catalog: Catalog
    today: date
    default_region: str
    roots: Sequence[Path]
    sets: Sequence[str] = ()
    network: NetworkRequest = NO_REQUEST
    preflight: Preflight | None = None
    offline: bool = False
    all_regions: bool = False
    engine: str = "direct"
    allowed: Sequence[Path] = ()


def make_plan(request: PlanRequest, backend: Backend) -> Planned:
    """Plan a recipe on a backend.

    Raises:
        RecipeError: The recipe does not exist or is invalid.
        UsageError: A `--set` is not `name=value`, or the inventory of self-managed hosts is invalid.
        CloudError: A request to the cloud failed.
    """
    catalog, default_region = request.catalog, request.default_region
    loaded = loader.load(loader.find(request.recipe, roots=request.roots), allowed=request.allowed)
    recipe = resolve(loaded, sets=read_sets(request.sets), rehearsal=is_simulated(backend.target))
    offers = backend.offers(offline=request.offline)
    if request.all_regions:
        recipe = with_all_regions(recipe, offers.usable_regions(catalog))
    quotes = Quotes()
    if request.preflight is not None:
        regions = offers.known_regions(recipe, catalog, default_region)
        survey = request.preflight.survey(recipe, loaded.base, regions, offers.inspector())
        quotes = replace(quotes, survey=replace(survey, changed_params=tuple(changed_params(loaded, recipe))))
    question = PlannerInput(recipe, backend.target, catalog, quotes, default_region, request.today, request.network)
    question = replace(question, engine=request.engine)
    question = offers.quote(question)
    return Planned(planner.build_plan(question), loaded.path, loaded.base, question)


def with_all_regions(recipe: Recipe, regions: Sequence[str]) -> Recipe:
    """Return the recipe with all of these regions and without zones. The recipe's own regions stay first."""
    named = [region for region in recipe.resources.regions if region in regions]
    resources = recipe.resources.model_copy(update={"regions": tuple(dict.fromkeys([*named, *regions])), "zones": ()})
    return recipe.model_copy(update={"resources": resources})


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
