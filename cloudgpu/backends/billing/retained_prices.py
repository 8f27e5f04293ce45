"""Monthly prices of storage and machine images, which outlive clusters."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from cloudgpu.catalog.prices import shipped_price, storage_price
from cloudgpu.recipe.storage_kinds import KINDS

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.aws.ec2.machine_images import OwnImage
    from cloudgpu.aws.storage.storage_tags import TaggedStorage

_PRICED_IN = "us-east-1"
"""Region whose snapshot price is used for all regions."""


def image_monthly_usd(image: OwnImage) -> Decimal:
    """Return an upper bound for the monthly cost of the image's snapshots in USD, at the us-east-1 price."""
    return image.size_gib * shipped_price("snapshot_gib_month_usd", _PRICED_IN).usd


def storage_monthly_usd(stored: TaggedStorage) -> Decimal | None:
    """Return the monthly cost of the current capacity in USD, or None if unknown."""
    return capacity_monthly_usd(stored, stored.data.size_gib if stored.data else Decimal(0))


def capacity_monthly_usd(stored: TaggedStorage, size_gib: Decimal | None) -> Decimal | None:
    """Return the monthly cost of this capacity in USD; None if the size or price is unknown, 0 if no data exists."""
    kind = next((kind for kind in KINDS if kind == stored.kind), None)
    if stored.data is None:
        return Decimal(0)
    price = storage_price(kind, stored.region, stored.data.deployment.lower()) if kind else None
    return None if price is None or size_gib is None else price.monthly_usd(size_gib)
