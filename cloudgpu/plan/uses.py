"""Which software the nodes of a type will have: machine image, driver, CUDA, container. Pure."""

from dataclasses import asdict, dataclass
from typing import Any

from cloudgpu.catalog import Gpu
from cloudgpu.catalog.communication import Setting, settings
from cloudgpu.catalog.compatibility import release_of
from cloudgpu.catalog.software import software
from cloudgpu.plan.driver import node_driver
from cloudgpu.recipe.schema import Recipe


@dataclass(frozen=True)
class Use:
    """The software on the nodes of one instance type. Empty text is what nobody can know before."""

    instance_type: str
    image: str
    """Machine image: `ami-...`, or the parameter that will name it."""
    image_parameter: str
    driver: str
    """Branch and flavour of NVIDIA's driver, for instance `580 proprietary`."""
    driver_from: str
    """`bootstrap` or `machine image`; empty for an image of the recipe's own."""
    cuda: str
    """Of the container; without one it comes with the Python packages."""
    container: str
    environment: tuple[Setting, ...] = ()
    """What every rank is told about the network, where the recipe does not say it."""

    def as_json(self) -> dict[str, Any]:
        """Its documented form; null for what nobody can know before."""
        told = {name: value or None for name, value in asdict(self).items()}
        return told | {"environment": [asdict(one) for one in self.environment]}


def use_of(recipe: Recipe, instance_type: str, gpu: Gpu, image: str, parameter: str) -> Use:
    """The software on nodes of this type."""
    driver = node_driver(recipe, gpu)
    # The bootstrap looks first: whether an image of one's own brings a driver, nobody can see before.
    origin = "bootstrap" if driver.installed else "machine image"
    name = f"{driver.branch} {driver.flavour}" if driver.branch is not None else ""
    container = recipe.environment.container
    image_of_ranks = "" if container is None else container.image
    told = settings(instance_type, recipe.resources.nodes, recipe.resources.network, recipe.environment.env)
    cuda = _cuda(image_of_ranks)
    return Use(instance_type, image, parameter, name, origin if name else "", cuda, image_of_ranks, told)


def _cuda(container: str) -> str:
    month = release_of(container, software())
    return "" if month is None else month.cuda
