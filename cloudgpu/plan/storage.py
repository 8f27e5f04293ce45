"""Effects of storage on a plan: existing storage restricts regions and zones, and new storage adds costs."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cloudgpu.catalog.other_prices import HOURS_PER_MONTH
from cloudgpu.catalog.storage import storage_price
from cloudgpu.plan.costs import CostItem, Per
from cloudgpu.plan.storage_state import StorageSeen
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.storage import Make, Storage

if TYPE_CHECKING:
    from cloudgpu.plan.planner_input import PlannerInput

ZONAL: Final = frozenset({"lustre", "ebs"})
"""Storage kinds that exist in a single zone."""
GROUPED: Final = frozenset({"efs", "lustre"})
"""Storage kinds that nodes access through a security group, which belongs to one VPC."""


Seen = Mapping[str, tuple[StorageSeen, ...]]
"""Name -> existing storage, at most one per region; empty if there is none, absent if not queried."""


def possibly_existing_storage(recipe: Recipe) -> tuple[Storage, ...]:
    """Return the storage that may already exist: everything except storage created for a single cluster."""
    return tuple(storage for storage in recipe.storage if storage.make is None or storage.keep)


def existing_storage(recipe: Recipe, seen: Seen) -> Iterator[tuple[StorageSeen, ...]]:
    """Yield the locations of each storage resource that exists, one tuple per name."""
    for storage in possibly_existing_storage(recipe):
        if seen.get(storage.name):
            yield seen[storage.name]


def can_mount(question: "PlannerInput", region: str, zone: str) -> bool:
    """Return True if nodes in a zone can mount all existing storage."""
    return all(
        any(location.region == region and location.zone in ("", zone) for location in places)
        for places in existing_storage(question.recipe, question.quotes.storage)
    )


def new_storage_costs(question: "PlannerInput", region: str) -> tuple[CostItem, ...]:
    """Return the costs of storage to create in a region. Storage that outlives the cluster is priced per month."""
    there = {pair[0].name for pair in existing_storage(question.recipe, question.quotes.storage)}
    return tuple(
        new_storage_item(storage, storage.make, region)
        for storage in question.recipe.storage
        if storage.make is not None and storage.name not in there
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
    monthly_usd = price.monthly_usd(Decimal(int(make.size)))
    usd = monthly_usd if storage.keep else monthly_usd / HOURS_PER_MONTH
    return CostItem("storage", 1, what, usd, price.as_of, price.source, per=per)
