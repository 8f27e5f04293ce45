"""Catalog data about software: NGC releases, framework images, PyTorch wheels and minimum versions for EFA."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class NgcMonth:
    """An NGC release (`YY.MM`) of NVIDIA's framework containers, which share CUDA and driver requirements."""

    month: str
    cuda: str
    driver: int
    """Driver branch that the release's CUDA version requires."""
    other_drivers: tuple[int, ...]
    """Older data center driver branches that the release notes also accept."""
    lowest: str | None
    """Lowest supported compute capability; None if the release notes do not state it."""
    source: str


@dataclass(frozen=True)
class FrameworkImage:
    """A container image, identified by repository and tag, and the GPUs for which it has native code."""

    framework: str
    image: str
    lowest: str | None
    """Lowest compute capability with native code in the image; None if unknown."""
    highest: str | None
    """Highest compute capability with native code in the image, which also runs on higher minor versions of the same
    major version. None if unknown, or if the image also contains PTX code, which newer GPUs can compile."""
    last_for: tuple[str, ...]
    """Architectures for which this is the last image of the framework."""
    recalled: bool
    """Whether the tag is unconfirmed because no public reference to it was found."""
    source: str
    cuda: str | None = None
    """CUDA version, if it differs from the version of the image's NGC release."""


@dataclass(frozen=True)
class TorchWheels:
    """The wheels for one CUDA version in a range of PyTorch versions that support the same GPUs."""

    cuda: str
    """CUDA version as in the wheel index, for example `cu126`."""
    first: str
    last: str | None
    """Last PyTorch version of the range; None while the range includes all newer versions."""
    capabilities: tuple[str, ...]
    default_from: str | None
    """First PyTorch version for which pip installs this wheel from the default index; None if never."""
    default_to: str | None
    """Last PyTorch version for which pip installs this wheel by default; None if it still does or never did."""
    source: str


@dataclass(frozen=True)
class FabricMinimum:
    """The minimum software versions for EFA on an instance type; None for an unknown version."""

    instance_type: str
    efa_installer: str | None
    ofi_nccl: str | None
    nccl: str | None
    cuda: str | None
    source: str


@dataclass(frozen=True)
class Software:
    """All software data."""

    ngc: Mapping[str, NgcMonth]
    """NGC release (`YY.MM`) -> data about the release; unknown releases are missing."""
    images: tuple[FrameworkImage, ...]
    torch: tuple[TorchWheels, ...]
    fabric: Mapping[str, FabricMinimum]
    """Instance type -> minimum versions."""


@cache
def software() -> Software:
    """Return the software data bundled with this version of cloudgpu."""
    path = files("cloudgpu.catalog").joinpath("data", "software.json")
    stored: dict[str, Any] = json.loads(path.read_text("utf-8"))
    ngc = [NgcMonth(**{**row, "other_drivers": tuple(row["other_drivers"])}) for row in stored["ngc"]]
    images = [FrameworkImage(**{**row, "last_for": tuple(row["last_for"])}) for row in stored["images"]]
    wheels = [TorchWheels(**{**row, "capabilities": tuple(row["capabilities"])}) for row in stored["torch"]]
    fabric = [FabricMinimum(**row) for row in stored["fabric"]]
    return Software(
        ngc={month.month: month for month in ngc},
        images=tuple(images),
        torch=tuple(wheels),
        fabric={minimum.instance_type: minimum for minimum in fabric},
    )
