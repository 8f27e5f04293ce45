"""Provide the planner with the state of an account, and list the resources that a plan would create."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.backends.aws.clusters.delete import stack_of
from cloudgpu.backends.aws.ports import Cloud
from cloudgpu.backends.base import Inspector, Offers
from cloudgpu.backends.billing.retained_prices import storage_monthly_usd as monthly_usd
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record, record_with_candidate
from cloudgpu.backends.lifecycle.results import ResourceForecast
from cloudgpu.backends.quota_headroom import QuotaHeadroom, headroom_by_quota
from cloudgpu.catalog import Catalog
from cloudgpu.clock import Clock
from cloudgpu.engine.base import PreviewStep
from cloudgpu.paths import Home
from cloudgpu.plan import planner_input
from cloudgpu.plan.network_access import GATEWAYS
from cloudgpu.plan.plan import Plan, Quotes, StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import Seen, possibly_existing_storage
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.cooldowns import Cooldowns

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.aws.storage.storage_tags import TaggedStorage
    from cloudgpu.targets import Target


_PLACEHOLDER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA forecast"
"""Placeholder public key: a preview must not create a key pair."""
_PLACEHOLDER_CIDR = "127.0.0.1/32"
"""Placeholder for the caller's address, which a preview does not look up."""
_NO_JOURNAL = ".forecast"
"""Name of a journal that never exists, so that an existing cluster of the same name does not affect the preview."""
_COMPONENT = "cloudgpu:infra:"
_STACK = "pulumi:"


def forecast(
    plan: Plan, cluster: str, *, cloud: Cloud, requester: Requester, home: Home, clock: Clock
) -> tuple[ResourceForecast, ...]:
    """Preview the resources of a cluster on the plan's first candidate without changing anything.

    The public key of `requester` is not used.
    """
    if not plan.candidates:
        return ()
    record = record_with_candidate(
        new_record(cloud, plan, cluster, requester, "", clock.now()),
        plan,
        plan.candidates[0],
        replace(requester, public_key=_PLACEHOLDER_KEY),
        _PLACEHOLDER_CIDR,
    )
    journal: Path = home.cluster(cluster).journal(record.placement.region).with_name(_NO_JOURNAL)
    stack = replace(stack_of(home, record), journal=journal)
    return tuple(_made(cloud.engine(record).preview(stack)))


def _made(steps: Iterable[PreviewStep]) -> Iterator[ResourceForecast]:
    """Yield the AWS resources that the program would create, without Pulumi components and the stack itself."""
    for step in steps:
        if step.operation == "create" and not step.type.startswith((_COMPONENT, _STACK)):
            yield ResourceForecast(step.type, step.name)


@dataclass(frozen=True)
class CloudOffers(Offers):
    """The zones, images, storage, quotas and recent capacity failures of one cloud account.

    Attributes:
        open_cloud: Connects to the account, once for all queries; None when planning offline.
        cooldowns: Candidates with a recent capacity failure, which are tried last; None when planning offline.
    """

    target: Target
    open_cloud: Callable[[], Cloud] | None
    quota_headroom: QuotaHeadroom
    cooldowns: Cooldowns | None

    @cached_property
    def _cloud(self) -> Cloud | None:
        return None if self.open_cloud is None else self.open_cloud()

    def usable_regions(self, catalog: Catalog) -> tuple[str, ...]:
        """Return the catalog regions that the account can use; every catalog region when offline."""
        if self._cloud is None:
            return tuple(catalog.regions)
        enabled = set(self._cloud.regions())
        return tuple(region for region in catalog.regions if region in enabled)

    def known_regions(self, recipe: Recipe, catalog: Catalog, default_region: str) -> tuple[str, ...]:
        """Return the requested regions that are in the catalog."""
        return tuple(planner_input.known_regions(recipe, catalog, default_region))

    def inspector(self) -> Inspector | None:
        """Return an `Inspector` for the resources that a recipe names, or None when offline."""
        return None if self._cloud is None else self._cloud.inspector()

    def quote(self, question: PlannerInput) -> PlannerInput:
        """Add zones, prices, images, storage, addresses, cooldowns and quotas. When offline, add only cached quotas."""
        known = self.known_regions(question.recipe, question.catalog, question.default_region)
        enabled = question.quotes.survey.enabled_regions
        # Do not query regions that are not enabled: AWS would reject the credentials. A plan rule excludes the regions.
        usable = tuple(region for region in known if enabled is None or region in enabled)
        if self._cloud is None:
            headroom = self.quota_headroom.cached(self.target, known)
            return replace(question, quotes=replace(question.quotes, quotas=headroom_by_quota(headroom)))
        quotes = _with_cloud_quotes(question, self._cloud, usable)
        if self.cooldowns is not None:
            quotes = replace(quotes, refused=self.cooldowns.recent(self._cloud))
        question = _with_missing_prices(replace(question, quotes=quotes), self._cloud, usable)
        headroom = self.quota_headroom.asked(self._cloud, usable)
        return replace(question, quotes=replace(question.quotes, quotas=headroom_by_quota(headroom)))


def _with_missing_prices(question: PlannerInput, cloud: Cloud, regions: Sequence[str]) -> PlannerInput:
    """Read the prices that the catalog lacks from the price list. A failed request is the reason of an exclusion."""
    pairs = planner_input.prices_to_query(question, regions)
    if not pairs:
        return question
    found = cloud.on_demand_prices(pairs)
    prices = {pair: usd for pair, usd in found.items() if not isinstance(usd, str)}
    unknown = {pair: why for pair, why in found.items() if isinstance(why, str)}
    return replace(
        question,
        catalog=question.catalog.with_prices(prices, question.today),
        quotes=replace(question.quotes, prices_unknown=unknown),
    )


def _with_cloud_quotes(question: PlannerInput, cloud: Cloud, regions: Sequence[str]) -> Quotes:
    """Return what a recipe needs in these regions: zones, images, root disks, storage, addresses and the reservation.

    The plan contains image IDs rather than SSM parameters, so that a newer image does not change a saved plan.
    """
    recipe, catalog, default = question.recipe, question.catalog, question.default_region
    offers = [offer for offer in planner_input.offers_to_query(recipe, catalog, default) if offer[1] in regions]
    parameters = [image for image in planner_input.images_to_resolve(recipe, catalog, default) if image[1] in regions]
    images = cloud.images(parameters)
    fixed = [(recipe.resources.image or "", region) for region in regions]
    wanted = [(image, region) for image, region in fixed if image.startswith("ami-")]
    wanted += [(image, region) for (_, region), image in images.items()]
    # A parameter that was not resolved is read again, because only that tells whether it is missing or unreadable.
    wanted += [parameter for parameter in parameters if parameter not in images]
    described = cloud.machine_images(tuple(dict.fromkeys(wanted)))
    quotes = replace(
        cloud.quotes(offers),
        images=images,
        machine_images=described,
        root_disks={key: seen.root_gib for key, seen in described.items() if seen.root_gib},
        storage=find_existing_storage(cloud, recipe, regions),
        survey=question.quotes.survey,
    )
    if recipe.resources.reservation:
        reservation = cloud.reservation(recipe.resources.reservation, regions)
        quotes = replace(quotes, reservation=reservation.found, asked_at=reservation.asked_at)
    if not question.network.create_vpc and question.network.public_address not in GATEWAYS:
        quotes = replace(quotes, networks=cloud.networks(regions, question.network))
    limited = planner_input.regions_needing_elastic_ips(recipe, catalog, default, question.network)
    limited_here = [region for region in limited if region in regions]
    return replace(quotes, free_addresses=cloud.free_addresses(limited_here)) if limited_here else quotes


def find_existing_storage(cloud: Cloud, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """Return the existing storage in these regions for each storage name that the recipe mounts."""
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
        mount_zones=storage.mount_zones,
        vpc_id=storage.vpc_id,
    )
