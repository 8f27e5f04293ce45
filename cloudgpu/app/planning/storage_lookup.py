"""Look up the existing storage that a recipe mounts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudgpu.app.storage.overview import monthly_usd
from cloudgpu.backends.base import Cloud
from cloudgpu.plan.storage import Seen, looked_for
from cloudgpu.plan.storage_seen import StorageSeen
from cloudgpu.recipe.schema import Recipe

if TYPE_CHECKING:
    # Only for annotations: an offline plan must not import boto3.
    from cloudgpu.aws.storage.stored import Stored


def seen(cloud: Cloud, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """Return the existing storage in these regions by each name that the recipe mounts.

    Raises:
        CloudError: A region could not be queried.
    """
    names = [mount.name for mount in looked_for(recipe)]
    if not names:
        return {}
    stores = cloud.storage()
    stored = [storage for region in regions for storage in stores.found(region)]
    return {name: tuple(_seen(storage) for storage in stored if storage.name == name) for name in names}


def _seen(storage: Stored) -> StorageSeen:
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
