"""Storage in a plan: what stands already binds regions and zones, what is made with the cluster costs money. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cloudgpu.catalog.other_prices import MONTH_H
from cloudgpu.catalog.storage import storage_price
from cloudgpu.plan.costs import CostItem, Per
from cloudgpu.plan.storage_seen import StorageSeen
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.storage import Make, Storage

if TYPE_CHECKING:
    from cloudgpu.plan.question import Question

ZONAL: Final = frozenset({"lustre", "ebs"})
"""Kinds that stand in one zone."""
GROUPED: Final = frozenset({"efs", "lustre"})
"""Kinds that nodes reach by carrying a security group, which belongs to one VPC."""


Seen = Mapping[str, tuple[StorageSeen, ...]]
"""Name -> what stands under it, at most one a region; an absent name was not looked for."""


def looked_for(recipe: Recipe) -> tuple[Storage, ...]:
    """What may stand already: everything but what each cluster makes for itself."""
    return tuple(one for one in recipe.storage if one.make is None or one.keep)


def existing_storage(recipe: Recipe, seen: Seen) -> Iterator[tuple[StorageSeen, ...]]:
    """Of each piece that stands somewhere, where it does."""
    for one in looked_for(recipe):
        if seen.get(one.name):
            yield seen[one.name]


def near(question: "Question", region: str, zone: str) -> bool:
    """Whether nodes in a zone can mount all that stands."""
    return all(
        any(one.region == region and one.zone in ("", zone) for one in places)
        for places in existing_storage(question.recipe, question.quotes.storage)
    )


def made(question: "Question", region: str) -> tuple[CostItem, ...]:
    """What the storage costs that would be made in a region; what stays when the cluster ends by the month."""
    there = {one[0].name for one in existing_storage(question.recipe, question.quotes.storage)}
    return tuple(
        item(one, one.make, region) for one in question.recipe.storage if one.make is not None and one.name not in there
    )


def item(one: Storage, make: Make, region: str) -> CostItem:
    """One line of the costs. What grows with what it holds has no price that could be told before."""
    deployment = (make.deployment or "scratch_2") if make.kind == "lustre" else ""
    price = storage_price(make.kind, region, deployment)
    size = f" of {make.size}" if make.size else ""
    what = f"storage {one.name} ({make.kind}{size}{', kept' if one.keep else ''})"
    per: Per = "month" if one.keep else "hour"
    if price is None or make.size is None:
        return CostItem("storage", 1, what, None, None, "", per=per)
    monthly_usd = price.monthly_usd(Decimal(int(make.size)))
    usd = monthly_usd if one.keep else monthly_usd / MONTH_H
    return CostItem("storage", 1, what, usd, price.as_of, price.source, per=per)
