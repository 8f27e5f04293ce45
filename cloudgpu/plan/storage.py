"""Effects of storage on a plan: existing storage restricts regions and zones, and new storage adds costs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from cloudgpu.catalog import InstanceType
from cloudgpu.catalog.prices_and_quotas import HOURS_PER_MONTH, storage_price
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.checks.rule import Reason, rule
from cloudgpu.plan.costs import CostItem, Per
from cloudgpu.plan.plan import StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.subnets import MountSubnets, choose_mount_subnets, mount_need
from cloudgpu.recipe.schema import Make, Recipe, Storage
from cloudgpu.text import command

Seen = Mapping[str, tuple[StorageSeen, ...]]
"""Name -> existing storage, at most one per region; empty if there is none, absent if not queried."""


@rule("storage", "Nodes cannot mount storage in another region, or in a zone that does not offer their type.")
def storage_in_other_region(inputs: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions without the storage, and regions where the storage's zone does not offer the type."""
    zones = inputs.zones_offering(instance_type, region)
    for locations in existing_storage(inputs.recipe, inputs.quotes.storage):
        here = [location for location in locations if location.region == region]
        name = locations[0].name
        if not here:
            regions = ", ".join(location.region for location in locations)
            yield Reason(
                f"storage {name} is in {regions}, not in {region}", command("--set", f"resources.regions={regions}")
            )
        elif all(_is_limited(location) and not any(map(location.is_in, zones)) for location in here):
            places = here[0].zone or ", ".join(here[0].mount_zones)
            message = f"storage {name} is in {places}, where {instance_type.name} is not offered"
            yield Reason(message, "choose another type, or create storage in another zone: `cloudgpu storage create`")


def _is_limited(location: StorageSeen) -> bool:
    """Return True if only some zones of the region can mount the storage."""
    return bool(location.zone or location.mount_zones)


def possibly_existing_storage(recipe: Recipe) -> tuple[Storage, ...]:
    """Return the storage that may already exist: everything except storage created for a single cluster."""
    return tuple(storage for storage in recipe.storage if storage.make is None or storage.keep)


def existing_storage(recipe: Recipe, seen: Seen) -> Iterator[tuple[StorageSeen, ...]]:
    """Yield the locations of each storage resource that exists, one tuple per name."""
    for storage in possibly_existing_storage(recipe):
        if seen.get(storage.name):
            yield seen[storage.name]


def can_mount(inputs: PlannerInput, region: str, zone: str) -> bool:
    """Return True if nodes in a zone can mount all existing storage."""
    return all(
        any(location.region == region and location.is_in(zone) for location in places)
        for places in existing_storage(inputs.recipe, inputs.quotes.storage)
    )


def is_new(inputs: PlannerInput, storage: Storage) -> bool:
    """Return True if the storage is created with the cluster."""
    there = {places[0].name for places in existing_storage(inputs.recipe, inputs.quotes.storage)}
    return storage.make is not None and storage.name not in there


def new_mount_subnets(
    inputs: PlannerInput, candidates: Sequence[Candidate], storage: Storage, region: str
) -> MountSubnets | None:
    """Return the subnets for a new EFS file system in a region; None for other storage or if they are unknown."""
    network = inputs.quotes.networks.get(region)
    known = network is not None and not (network.missing or network.unknown)
    if network is None or not known or not is_new(inputs, storage) or storage.make is None:
        return None
    planned = node_subnets(candidates, region)
    if storage.make.kind != "efs" or not planned:
        return None
    return choose_mount_subnets(network, "", mount_need("efs", network, inputs.network), planned)


def node_subnets(candidates: Iterable[Candidate], region: str) -> dict[str, str]:
    """Return the subnet of the first candidate in each zone of a region, as far as the plan chose one."""
    subnets: dict[str, str] = {}
    for candidate in candidates:
        if candidate.region == region and candidate.subnet:
            subnets.setdefault(candidate.zone, candidate.subnet)
    return subnets


def new_storage_costs(inputs: PlannerInput, region: str) -> tuple[CostItem, ...]:
    """Return the costs of storage to create in a region. Storage that outlives the cluster is priced per month."""
    return tuple(
        new_storage_item(storage, storage.make, region)
        for storage in inputs.recipe.storage
        if storage.make is not None and is_new(inputs, storage)
    )


def new_storage_item(storage: Storage, make: Make, region: str) -> CostItem:
    """Return the cost item for storage to create. Without a fixed size or a known rate, the item has no price."""
    deployment = (make.deployment or "scratch_2") if make.kind == "lustre" else ""
    price = storage_price(make.kind, region, deployment)
    size = f" of {make.size}" if make.size else ""
    what = f"storage {storage.name} ({make.kind}{size}{', kept' if storage.keep else ''})"
    per: Per = "month" if storage.keep else "hour"
    if price is None or make.size is None:
        return CostItem("storage", 1, what, None, None, "", per=per)
    monthly_usd = price.usd * Decimal(int(make.size))
    usd = monthly_usd if storage.keep else monthly_usd / HOURS_PER_MONTH
    return CostItem("storage", 1, what, usd, price.priced_on, price.source, per=per)
