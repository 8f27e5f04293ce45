"""What the plan has to know of storage that stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cloudgpu.app.storage.overview import monthly_usd
from cloudgpu.backends.base import Cloud
from cloudgpu.plan.storage import Seen, looked_for
from cloudgpu.plan.storage_seen import StorageSeen
from cloudgpu.recipe.schema import Recipe

if TYPE_CHECKING:
    # Only a type: a plan that asks no cloud must not pay for boto3.
    from cloudgpu.aws.storage.stored import Stored


def seen(cloud: Cloud, recipe: Recipe, regions: Sequence[str]) -> Seen:
    """What stands in these regions under the names that the recipe mounts.

    Raises:
        CloudError: A region could not be asked.
    """
    wanted = [one.name for one in looked_for(recipe)]
    if not wanted:
        return {}
    stores = cloud.storage()
    found = [one for region in regions for one in stores.found(region)]
    return {name: tuple(_seen(one) for one in found if one.name == name) for name in wanted}


def _seen(one: Stored) -> StorageSeen:
    return StorageSeen(
        name=one.name,
        kind=one.kind,
        region=one.region,
        zone=one.data.zone if one.data else "",
        ready=one.data is not None and one.data.ready,
        owner=one.tag("cloudgpu:owner"),
        users=one.users,
        monthly_usd=monthly_usd(one),
    )
