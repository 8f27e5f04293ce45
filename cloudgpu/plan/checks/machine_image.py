"""Rule: exclude types whose machine image does not exist, cannot be launched, or does not fit."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.plan.checks.rule import Reason, region_rule
from cloudgpu.plan.planner_input import PlannerInput

_ARCHITECTURE: Final = "x86_64"
"""Architecture of every type in the catalog that can be launched."""
_OTHER: Final = "set resources.image to another image, or omit it to use the default image of the GPU"


@region_rule("machine-image-id", "AWS rejects the launch of an image that does not exist or does not fit the type.")
def image_unusable(question: PlannerInput, instance_type: InstanceType, region: str) -> Iterator[Reason]:
    """Exclude regions in which the type's machine image does not exist, cannot be launched, or does not fit."""
    image = question.image(instance_type, region)
    seen = question.quotes.machine_images.get((image, region))
    if seen is None or seen.presence == "unknown":
        return
    if seen.presence == "missing":
        what = f"machine image {image}" if image.startswith("ami-") else f"the parameter {image} of the machine image"
        shared = " or is not shared with this account" if image.startswith("ami-") else ""
        yield Reason(f"{what} does not exist in {region}{shared}", _OTHER)
    elif seen.unfit:
        yield Reason(f"machine image {image} in {region} {seen.unfit}", _OTHER)
    elif seen.architecture and seen.architecture != _ARCHITECTURE:
        types = f"but {instance_type.name} needs {_ARCHITECTURE}"
        yield Reason(f"machine image {image} in {region} is for {seen.architecture}, {types}", _OTHER)
