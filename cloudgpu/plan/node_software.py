"""The software on the nodes of an instance type: machine image, driver, CUDA and container."""

from dataclasses import asdict, dataclass
from typing import Any

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.communication import RankVariable, rank_variables
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.catalog.software import software
from cloudgpu.plan.node_driver import node_driver
from cloudgpu.recipe.schema import Recipe


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
