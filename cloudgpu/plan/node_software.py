"""Determine the software on a recipe's nodes: machine image, NVIDIA driver, CUDA and container."""

from dataclasses import asdict, dataclass
from typing import Any

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.catalog import bare_image, carried_driver, driver_for
from cloudgpu.catalog.compatibility import release_of, software
from cloudgpu.catalog.hardware import Flavour
from cloudgpu.catalog.nccl_variables import RankVariable, rank_variables
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


@dataclass(frozen=True)
class NodeSoftware:
    """The software on the nodes of one instance type. Unused fields and fields unknown before launch are empty."""

    instance_type: str
    image: str
    """Machine image: `ami-...`, or the SSM parameter that resolves to it at launch."""
    image_parameter: str
    driver: str
    """Branch and kernel module variant of the NVIDIA driver, for example `580 proprietary`."""
    driver_from: str
    """Source of the driver: `bootstrap` or `machine image`; empty if the driver is unknown."""
    cuda: str
    """CUDA version of the container; empty without a container, because CUDA then comes with the Python packages."""
    container: str
    environment: tuple[RankVariable, ...] = ()
    """Network variables that cloudgpu sets for every rank, except those that the recipe sets."""

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with null for empty fields."""
        fields = {name: value or None for name, value in asdict(self).items()}
        return fields | {"environment": [asdict(setting) for setting in self.environment]}


def software_for(recipe: Recipe, instance_type: str, gpu: Gpu, image: str, parameter: str) -> NodeSoftware:
    """Return the software on nodes of this type."""
    driver = node_driver(recipe, gpu)
    # For a custom machine image, `node_driver` returns no branch, because only the bootstrap can detect its driver.
    origin = "bootstrap" if driver.installed else "machine image"
    name = f"{driver.branch} {driver.flavour}" if driver.branch is not None else ""
    container = recipe.environment.container
    container_image = "" if container is None else container.image
    environment = rank_variables(
        instance_type, recipe.resources.nodes, recipe.resources.network, recipe.environment.env
    )
    cuda = _cuda(container_image)
    return NodeSoftware(
        instance_type, image, parameter, name, origin if name else "", cuda, container_image, environment
    )


def _cuda(container: str) -> str:
    release = release_of(container, software())
    return "" if release is None else release.cuda
