"""Rule: exclude types from regions where their nodes cannot mount the recipe's storage."""

from collections.abc import Iterator

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, region_rule
from cloudgpu.plan.plan import StorageSeen
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.storage import existing_storage
from cloudgpu.text import command


@region_rule("storage", "Nodes cannot mount storage in another region, or in a zone that does not offer their type.")
def storage_in_other_region(question: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions without the storage, and regions where the storage's zone does not offer the type."""
    zones = question.zones_offering(instance_type, region)
    for locations in existing_storage(question.recipe, question.quotes.storage):
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
