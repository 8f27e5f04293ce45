"""Summarize a recipe for listings: hardware, software and reference value."""

from dataclasses import dataclass
from typing import Any

from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Summary:
    """The summary of a recipe for a listing.

    Attributes:
        hardware: Nodes and hardware, such as `2 x p3dn.24xlarge` or `1 x V100-32GB:8 or A100:8`.
        software: Container image or Python packages; empty if the recipe sets neither.
        reference: Name, value and unit of the first metric with a reference; empty if there is none.
    """

    name: str
    description: str
    nodes: int
    hardware: str
    launcher: str
    software: str
    reference: str
    parameters: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {**vars(self), "parameters": list(self.parameters)}


def summary(recipe: Recipe) -> Summary:
    """Summarize a recipe."""
    resources = recipe.resources
    hardware = resources.instance_type or resources.gpu or " or ".join(resources.any_of)
    return Summary(
        name=recipe.name,
        description=recipe.description,
        nodes=resources.nodes,
        hardware=f"{resources.nodes} x {hardware}",
        launcher=recipe.launch.launcher,
        software=_software(recipe),
        reference=_reference(recipe),
        parameters=tuple(recipe.params),
    )


def _software(recipe: Recipe) -> str:
    environment = recipe.environment
    if environment.container is not None:
        return environment.container.image
    return " ".join(environment.python.requirements) if environment.python is not None else ""


def _reference(recipe: Recipe) -> str:
    for name, metric in recipe.metrics.items():
        if metric.reference is not None:
            return f"{name} {metric.reference.value:,g} {metric.unit}".rstrip()
    return ""
