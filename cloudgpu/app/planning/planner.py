"""Plan a recipe: load and resolve it, check the resources that it refers to, query the cloud, rank the candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final

from cloudgpu.app.planning.local_files import (
    find_uploads,
    local_file_issues,
    local_listing,
    readable_datasets,
    workdir_listing,
)
from cloudgpu.app.planning.recipe_check import changed_params
from cloudgpu.backends.base import Backend, Inspector
from cloudgpu.backends.lifecycle.existing_cluster import matches
from cloudgpu.catalog import Catalog
from cloudgpu.clock import Clock
from cloudgpu.errors import BudgetError, CloudGpuError, PlanError, UsageError
from cloudgpu.plan import planner
from cloudgpu.plan.checks.environment import required_variables
from cloudgpu.plan.named_resources import DatasetSeen, ImageSeen, Lookups, NamedKind, NamedResource, ProfileSeen
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe import loader
from cloudgpu.recipe.loader import resolve
from cloudgpu.recipe.schema import Data, Environment, Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.local_files import without_data
from cloudgpu.run.progress import Note, Report, ignore_progress
from cloudgpu.settings import Settings
from cloudgpu.settings.tags import check_tags, merge_tags
from cloudgpu.ssh.transfer.local_tree import FileListing
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.targets import is_simulated, traits
from cloudgpu.workers import Workers

_AT_ONCE = 8
_OF_SETTINGS: Final[Mapping[str, NamedKind]] = {
    "key_name": "key pair",
    "role_name": "role",
    "permissions_boundary": "permissions boundary",
    "expiry_schedule_role": "role",
    "instance_profile": "instance profile",
    "vpc_id": "VPC",
    "subnet_id": "subnet",
    "security_group_id": "security group",
}


_GLOBAL: Final = ("role", "permissions boundary", "instance profile")

AskRegistry = Callable[[Environment], ImageSeen]
"""Looks up a recipe's container image in its registry; see `app.planning.image_check`."""


@dataclass(frozen=True)
class Preflight:
    """The checks that a command makes before planning.

    Attributes:
        environ: The caller's environment, used only to check which of the recipe's secrets are set.
        ask_registry: Function that looks up the image; None if planning offline or if the command does not run a
            container.
    """

    settings: Settings
    environ: Mapping[str, str]
    ask_registry: AskRegistry | None = None

    def look_up(self, recipe: Recipe, base: Path, regions: Sequence[str], inspector: Inspector | None) -> Lookups:
        """Look up the resources in these regions. Without an inspector, make only checks that do not need the cloud."""
        rehearsed = recipe.rehearsal.objects if recipe.rehearsal and is_simulated(self.settings.target) else {}
        local = readable_datasets(recipe, base)
        checks = {dataset.name: self._dataset(dataset, base, rehearsed, local, inspector) for dataset in recipe.data}
        listing = workdir_listing(recipe, base)
        with Workers(_AT_ONCE) as workers:
            image = self._image(recipe, workers)
            regions_asked = None if inspector is None else workers.submit(_enabled_regions, inspector)
            roles_asked = None if inspector is None or not _may_use_spot(recipe) else workers.submit(_roles, inspector)
            profile = self._profile(inspector, workers)
            denied = self._denied(inspector, workers)
            named = [workers.submit(look) for look in self._named(regions, inspector)]
            datasets = {name: workers.submit(check) for name, check in checks.items() if check is not None}
            roles, roles_unknown = (None, "") if roles_asked is None else roles_asked.result()
            enabled, why = (None, "") if regions_asked is None else regions_asked.result()
            return Lookups(
                datasets={name: seen.result() for name, seen in datasets.items()},
                workdir_bytes=None if listing is None else without_data(listing, recipe, base).bytes,
                uploads=tuple(found.upload for found in find_uploads(recipe, base, listing, local)),
                files=local_file_issues(recipe, base, listing, self.settings.allowed_paths),
                enabled_regions=enabled,
                regions_unknown=why,
                service_roles=roles,
                service_roles_unknown=roles_unknown,
                profile=None if profile is None else profile.result(),
                denied_role_actions=() if denied is None else denied.result(),
                tags_problem=_tags_problem(self.settings, recipe),
                region_origin=_region_origin(self.settings),
                named=tuple(lookup.result() for lookup in named),
                set_variables=frozenset(name for name in required_variables(recipe) if self.environ.get(name)),
                image=None if image is None else image.result(),
            )

    def _image(self, recipe: Recipe, workers: Workers) -> Future[ImageSeen] | None:
        """Look up the image. Return None if there is no registry client or the image is never pulled."""
        container = recipe.environment.container
        if self.ask_registry is None or container is None or container.pull == "never":
            return None
        return workers.submit(self.ask_registry, recipe.environment)

    def _profile(self, inspector: Inspector | None, workers: Workers) -> Future[ProfileSeen | None] | None:
        name = self.settings.instance_profile
        if inspector is None or not name:
            return None
        return workers.submit(inspector.profile, name, session_manager=self.settings.reach == "ssm")

    def _denied(self, inspector: Inspector | None, workers: Workers) -> Future[tuple[str, ...]] | None:
        if inspector is None or is_simulated(self.settings.target):  # the rehearsal has no policies of its callers
            return None
        return workers.submit(inspector.denied_role_actions, self._role_actions(), self.settings.permissions_boundary)

    def _role_actions(self) -> tuple[str, ...]:
        """Return the calls that create the roles of a cluster for which the settings name no existing role."""
        settings = self.settings
        makes_schedule_role = settings.expiry_schedule and not settings.expiry_schedule_role
        makes_node_role = not (settings.instance_profile or settings.role_name)
        return (
            *(("iam:CreateRole", "iam:PutRolePolicy") if makes_node_role or makes_schedule_role else ()),
            *(() if settings.instance_profile else ("iam:CreateInstanceProfile", "iam:AddRoleToInstanceProfile")),
        )

    @staticmethod
    def _dataset(
        data: Data,
        base: Path,
        rehearsed: Mapping[str, str],
        local: Mapping[str, FileListing],
        inspector: Inspector | None,
    ) -> Callable[[], DatasetSeen] | None:
        """Return the check for a dataset, or None if this machine cannot check it."""
        kind = source_of(data.source).kind
        if kind == "local":
            return lambda: _local_dataset(base / data.source, local.get(data.name))
        if kind == "https":
            return lambda: DatasetSeen("unknown", f"{data.source} is checked when the run starts; its size is unknown")
        if kind != "s3":
            return None
        directory = next((path for url, path in rehearsed.items() if data.source.startswith(url)), None)
        if directory is not None:
            # The rehearsal uploads this directory to the bucket when it starts.
            return lambda: _local_dataset(base / directory)
        return None if inspector is None else lambda: inspector.dataset(data.source)

    def _named(self, regions: Sequence[str], inspector: Inspector | None) -> Iterator[Callable[[], NamedResource]]:
        if inspector is None:
            return
        for setting, kind in _OF_SETTINGS.items():
            name = str(getattr(self.settings, setting))
            name = name.rpartition("/")[-1] if kind == "role" else name  # a setting may contain the role's ARN
            if not name:
                continue
            if kind == "key pair":  # must exist in every region that nodes may run in
                yield from (partial(_look_up, inspector, kind, name, (region,), setting) for region in regions)
            else:
                searched = ("",) if kind in _GLOBAL else tuple(regions)
                yield partial(_look_up, inspector, kind, name, searched, setting)


def _look_up(inspector: Inspector, kind: NamedKind, name: str, regions: Sequence[str], setting: str) -> NamedResource:
    """Look up a resource in these regions. If the regions differ, a region that has the resource takes precedence."""
    seen = {region: inspector.named(kind, name, region) for region in regions}
    by_presence = {presence: (region, why) for region, (presence, why) in seen.items()}
    for presence in ("there", "unknown", "missing"):
        if presence in by_presence:
            region, why = by_presence[presence]
            return NamedResource(
                kind, name, region if presence == "there" else ", ".join(regions), presence, why, setting
            )
    return NamedResource(kind, name, "", "unknown", "no region to check", setting)


def _tags_problem(settings: Settings, recipe: Recipe) -> str:
    try:
        check_tags(merge_tags(settings.tags, recipe.tags))
    except ValueError as err:
        return str(err)
    return ""


def _region_origin(settings: Settings) -> str | None:
    """Return where the region comes from, and an empty string for the default. None on targets other than AWS."""
    if is_simulated(settings.target) or not traits(settings.target).launches:
        return None
    origin = settings.explain("region").origin
    return "" if origin == "default" else origin


def _enabled_regions(inspector: Inspector) -> tuple[frozenset[str] | None, str]:
    """Return the enabled regions, or None and the reason if they are unknown."""
    try:
        return frozenset(inspector.regions()), ""
    except CloudGpuError as err:
        return None, err.message


def _may_use_spot(recipe: Recipe) -> bool:
    return "spot" in (recipe.resources.market, recipe.resources.prefer)


def _roles(inspector: Inspector) -> tuple[frozenset[str] | None, str]:
    """Return the names of the service-linked roles, or None and the reason if they are unknown."""
    try:
        return frozenset(inspector.service_roles()), ""
    except CloudGpuError as err:
        return None, err.message


def _local_dataset(source: Path, known: FileListing | None = None) -> DatasetSeen:
    """Return the size of local files. `known` contains them if they have already been listed."""
    try:
        listing = known or local_listing(source)
        if not listing.files:
            return DatasetSeen("missing", f"{source} has no files to copy")
        return DatasetSeen("there", size_bytes=listing.bytes)
    except UsageError as err:
        return DatasetSeen("missing", err.message)
    except OSError as err:
        return DatasetSeen("unknown", f"cannot read {source}: {err.strerror}")


@dataclass(frozen=True)
class Planned:
    """A plan, the path and directory of its recipe, and the planner's input."""

    plan: Plan
    path: Path
    base: Path
    inputs: PlannerInput
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
        lookups = request.preflight.look_up(recipe, loaded.base, regions, offers.inspector())
        quotes = replace(quotes, lookups=replace(lookups, changed_params=tuple(changed_params(loaded, recipe))))
    inputs = PlannerInput(recipe, backend.target, catalog, quotes, default_region, request.today, request.network)
    inputs = replace(inputs, engine=request.engine)
    inputs = offers.quote(inputs)
    return Planned(planner.build_plan(inputs), loaded.path, loaded.base, inputs)


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


def name_of_cluster(
    records: RecordStore, clock: Clock, plan: Plan, requested: str = "", emit: Report = ignore_progress
) -> str:
    """Return the name of the cluster on which a plan runs; empty if a new one has to be created for it.

    This is the requested cluster or, without one, the running cluster that is named after the recipe.

    Args:
        records: The records of the state home.
        clock: The command's clock.
        plan: The plan.
        requested: Name that the caller requires; empty for none.
        emit: Receives a note if the running cluster cannot be used.
    """
    if requested:
        return requested
    running = find_reusable_cluster(records, clock, plan, plan.recipe.name, emit)
    return "" if running is None else running.name


def find_reusable_cluster(
    records: RecordStore, clock: Clock, plan: Plan, name: str, emit: Report = ignore_progress
) -> ClusterRecord | None:
    """Return the cluster with this name if it is running on the plan's target, has not expired and matches the plan."""
    record = records.cluster(name)
    if record is None or (record.state, record.identity.target) != ("up", plan.target):
        return None
    if record.lifecycle.expires_at > clock.now() and matches(plan, record):
        return record
    emit(Note(f"cluster {record.name} has expired or does not match the plan; creating a new cluster"))
    return None
