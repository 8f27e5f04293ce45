"""Provide the planner with the state of an account: zones, prices, images, storage and quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Inspector, Offers
from cloudgpu.backends.billing.retained_billing import storage_monthly_usd as monthly_usd
from cloudgpu.backends.quota_headroom import QuotaHeadroom, headroom_by_quota
from cloudgpu.catalog import Catalog
from cloudgpu.plan import planner_input
from cloudgpu.plan.network_access import GATEWAYS
from cloudgpu.plan.plan import Quotes, StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import Seen, possibly_existing_storage
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.cooldowns import Cooldowns

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.backends.aws.account import AwsAccount
    from cloudgpu.cloud import TaggedStorage
    from cloudgpu.targets import Target


@dataclass(frozen=True)
class CloudOffers(Offers):
    """The zones, images, storage, quotas and recent capacity failures of one cloud account.

    Attributes:
        open_cloud: Connects to the account, once for all queries; None when planning offline.
        cooldowns: Candidates with a recent capacity failure, which are tried last; None when planning offline.
    """

    target: Target
    open_cloud: Callable[[], AwsAccount] | None
    quota_headroom: QuotaHeadroom
    cooldowns: Cooldowns | None

    @cached_property
    def _cloud(self) -> AwsAccount | None:
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
        return None if self._cloud is None else self._cloud.queries

    def quote(self, inputs: PlannerInput) -> PlannerInput:
        """Add zones, prices, images, storage, addresses, cooldowns and quotas. When offline, add only cached quotas."""
        known = self.known_regions(inputs.recipe, inputs.catalog, inputs.default_region)
        enabled = inputs.quotes.lookups.enabled_regions
        # Do not query regions that are not enabled: AWS would reject the credentials. A plan rule excludes the regions.
        usable = tuple(region for region in known if enabled is None or region in enabled)
        if self._cloud is None:
            headroom = self.quota_headroom.cached(self.target, known)
            return replace(inputs, quotes=replace(inputs.quotes, quotas=headroom_by_quota(headroom)))
        quotes = _with_cloud_quotes(inputs, self._cloud, usable)
        if self.cooldowns is not None:
            quotes = replace(quotes, refused=self.cooldowns.recent(self._cloud))
        inputs = _with_missing_prices(replace(inputs, quotes=quotes), self._cloud, usable)
        headroom = self.quota_headroom.asked(self._cloud, usable)
        return replace(inputs, quotes=replace(inputs.quotes, quotas=headroom_by_quota(headroom)))


def _with_missing_prices(inputs: PlannerInput, cloud: AwsAccount, regions: Sequence[str]) -> PlannerInput:
    """Read the prices that the catalog lacks from the price list. A failed request is the reason of an exclusion."""
    pairs = planner_input.prices_to_query(inputs, regions)
    if not pairs:
        return inputs
    found = cloud.on_demand_prices(pairs)
    prices = {pair: usd for pair, usd in found.items() if not isinstance(usd, str)}
    unknown = {pair: why for pair, why in found.items() if isinstance(why, str)}
    return replace(
        inputs,
        catalog=inputs.catalog.with_prices(prices, inputs.today),
        quotes=replace(inputs.quotes, prices_unknown=unknown),
    )


def _with_cloud_quotes(inputs: PlannerInput, cloud: AwsAccount, regions: Sequence[str]) -> Quotes:
    """Return what a recipe needs in these regions: zones, images, root disks, storage, addresses and the reservation.

    The plan contains image IDs rather than SSM parameters, so that a newer image does not change a saved plan.
    """
    recipe, catalog, default = inputs.recipe, inputs.catalog, inputs.default_region
    offers = [offer for offer in planner_input.offers_to_query(recipe, catalog, default) if offer[1] in regions]
    parameters = [image for image in planner_input.images_to_resolve(recipe, catalog, default) if image[1] in regions]
    images = cloud.image_ids(parameters)
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
        lookups=inputs.quotes.lookups,
    )
    if recipe.resources.reservation:
        reservation = cloud.reservation(recipe.resources.reservation, regions)
        quotes = replace(quotes, reservation=reservation.found, asked_at=reservation.asked_at)
    if not inputs.network.create_vpc and inputs.network.public_address not in GATEWAYS:
        quotes = replace(quotes, networks=cloud.networks(regions, inputs.network))
    limited = planner_input.regions_needing_elastic_ips(recipe, catalog, default, inputs.network)
    limited_here = [region for region in limited if region in regions]
    return replace(quotes, free_addresses=cloud.free_addresses(limited_here)) if limited_here else quotes


def find_existing_storage(cloud: AwsAccount, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """Return the existing storage in these regions for each storage name that the recipe mounts."""
    names = [mount.name for mount in possibly_existing_storage(recipe)]
    if not names:
        return {}
    stored = [storage for region in regions for storage in cloud.storage.found(region)]
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
