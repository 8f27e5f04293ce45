"""Determine the machine image and the NVIDIA driver of a recipe's nodes."""

from dataclasses import dataclass

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.hardware import Flavour
from cloudgpu.catalog.images import bare_image, carried_driver, driver_for
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class NodeDriver:
    """The NVIDIA driver of a node.

    Attributes:
        branch: Driver branch; None if unknown.
        flavour: Variant of the kernel modules; None if unknown.
        installed: Whether the bootstrap installs the driver. Otherwise it is part of the machine image.
    """

    branch: int | None
    flavour: Flavour | None
    installed: bool


def machine_image(recipe: Recipe, gpu: Gpu) -> str:
    """Return the recipe's machine image, or the default for the GPU: `ami-...` or an SSM parameter.

    A recipe that requests a driver branch gets an image without a driver, because the bootstrap does not replace a
    preinstalled driver.
    """
    resources = recipe.resources
    return resources.image or (gpu.image if resources.driver is None else bare_image().parameter)


def node_driver(recipe: Recipe, gpu: Gpu) -> NodeDriver:
    """Return the driver of nodes with this GPU: preinstalled on the machine image, or installed by the bootstrap."""
    image = machine_image(recipe, gpu)
    preinstalled = carried_driver(image)
    if preinstalled is not None:
        return NodeDriver(preinstalled.branch, preinstalled.flavour, installed=False)
    driver = driver_for(gpu.architecture, recipe.resources.driver)
    return NodeDriver(driver.branch, driver.flavour, installed=True)
