"""Which machine image and which driver the nodes of a recipe will have. Pure."""

from dataclasses import dataclass

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.hardware import Flavour
from cloudgpu.catalog.images import bare_image, carried_driver, driver_for
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class NodeDriver:
    """The driver of a node.

    Attributes:
        branch: None where nobody knows it.
        flavour: Of its kernel modules; None where nobody knows it.
        installed: Whether our bootstrap installs it; else it comes with the machine image.
    """

    branch: int | None
    flavour: Flavour | None
    installed: bool


def machine_image(recipe: Recipe, gpu: Gpu) -> str:
    """`ami-...` or an SSM parameter: the recipe's own, else what suits the GPU.

    A recipe that names a driver gets the image without one: what an image carries is not replaced.
    """
    resources = recipe.resources
    return resources.image or (gpu.image if resources.driver is None else bare_image().parameter)


def node_driver(recipe: Recipe, gpu: Gpu) -> NodeDriver:
    """The driver that nodes with a GPU will have: the machine image's own, else the bootstrap's."""
    image = machine_image(recipe, gpu)
    carried = carried_driver(image)
    if carried is not None:
        return NodeDriver(carried.branch, carried.flavour, installed=False)
    ours = driver_for(gpu.architecture, recipe.resources.driver)
    return NodeDriver(ours.branch, ours.flavour, installed=True)
