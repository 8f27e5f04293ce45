"""The rule that throws a type out where it cannot be had beside the storage that the recipe mounts."""

from collections.abc import Iterator

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, region_rule
from cloudgpu.plan.question import Question
from cloudgpu.plan.storage import existing_storage
from cloudgpu.text import command


@region_rule("storage", "Nodes cannot mount what stands in another region, or in a zone where they cannot be had.")
def storage_elsewhere(question: Question, kind: InstanceType, region: str) -> Iterator[Reason]:
    """Storage that stands where the type is not offered."""
    zones = question.zones_offering(kind, region)
    for places in existing_storage(question.recipe, question.quotes.storage):
        here = [one for one in places if one.region == region]
        name = places[0].name
        if not here:
            there = ", ".join(one.region for one in places)
            yield Reason(
                f"storage {name} stands in {there}, not in {region}", command("--set", f"resources.regions={there}")
            )
        elif all(one.zone and one.zone not in zones for one in here):
            message = f"storage {name} stands in {here[0].zone}, where {kind.name} is not offered"
            yield Reason(message, "another type, or storage in another zone: `cloudgpu storage create`")
