"""Select the machine image and driver for a GPU architecture, and look up the unpacked sizes of container images."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from cloudgpu.errors import RecipeError

Flavour = Literal["proprietary", "open"]


def unpacked_gib(image: str) -> int | None:
    """Return the approximate disk usage of an unpacked image in GiB, or None if the repository is unknown."""
    repository = image.partition("@")[0].rpartition(":")[0] or image
    size = _content("image_sizes.json")["repositories"].get(repository)
    return None if size is None else int(size)


@dataclass(frozen=True)
class Driver:
    """A branch of the NVIDIA driver and the variant of its kernel modules."""

    branch: int
    flavour: Flavour


@dataclass(frozen=True)
class CarriedDriver:
    """The driver that a machine image contains. A field is None if its value is unknown."""

    branch: int | None
    flavour: Flavour | None


@dataclass(frozen=True)
class MachineImage:
    """A machine image, identified by the public SSM parameter that resolves to its latest version in each region."""

    name: str
    parameter: str


def image_for(architecture: str) -> MachineImage:
    """Return the image for a GPU architecture: a Deep Learning AMI or, if none supports it, plain Ubuntu."""
    name = str(_entry(architecture)["image"])
    return MachineImage(name, _content("images.json")["images"][name])


def bare_image() -> MachineImage:
    """Return the machine image without a driver, for recipes that specify a driver."""
    name = str(_content("images.json")["bare"])
    return MachineImage(name, _content("images.json")["images"][name])


def driver_for(architecture: str, branch: int | None = None) -> Driver:
    """Return the driver to install on an image without one: the requested branch, or the architecture's default."""
    entry = _entry(architecture)
    return Driver(branch or int(entry["driver_branch"]), entry["driver_flavour"])


def carried_driver(image: str) -> CarriedDriver | None:
    """Return the driver in the machine image with this SSM parameter, or None if the image has no driver.

    For an AMI ID or an unknown parameter, both fields of the result are None.
    """
    carried = next((driver for driver in _content("images.json")["carried"] if driver["in_parameter"] in image), None)
    if carried is not None:
        return CarriedDriver(carried["driver_branch"], carried["driver_flavour"])
    return None if _content("images.json")["bare_in_parameter"] in image else CarriedDriver(None, None)


def _entry(architecture: str) -> Mapping[str, Any]:
    known: dict[str, Mapping[str, Any]] = {
        str(entry["name"]): entry for entry in _content("images.json")["architectures"]
    }
    if architecture not in known:
        message = f"no machine image is known for GPU architecture {architecture}"
        raise RecipeError(message, hint=f"set resources.image; known architectures: {', '.join(known)}")
    return known[architecture]


@cache
def _content(name: str) -> dict[str, Any]:
    """Read one data file. `catalog.read_data_file` does the same, but imports this module."""
    content: dict[str, Any] = json.loads(files("cloudgpu.catalog").joinpath("data", name).read_text("utf-8"))
    return content
