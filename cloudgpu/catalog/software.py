"""Software support by GPU: NVIDIA's monthly containers, framework images, PyTorch wheels, minimum versions for EFA."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class NgcMonth:
    """A month of NVIDIA's framework containers (`YY.MM`), whose frameworks share CUDA and driver requirements."""

    month: str
    cuda: str
    driver: int
    """Branch that its CUDA belongs to."""
    other_drivers: tuple[int, ...]
    """Older branches of data-centre drivers that its release notes accept as well."""
    lowest: str | None
    """Lowest compute capability; None where its notes do not say."""
    source: str


@dataclass(frozen=True)
class FrameworkImage:
    """A container image by repository and tag, and the GPUs it has native code for."""

    framework: str
    image: str
    lowest: str | None
    """Lowest compute capability that it has native code for; None where nobody looked it up."""
    highest: str | None
    """Highest that it has native code for; code of a major version runs on its later minors as well. None while it
    also carries code that newer GPUs translate, or where nobody looked it up."""
    last_for: tuple[str, ...]
    """Architectures for which this is the last one of its framework."""
    recalled: bool
    """Whether nobody has seen this tag in a public reference."""
    source: str
    cuda: str | None = None
    """Where it is not the one of its month."""


@dataclass(frozen=True)
class TorchWheels:
    """PyTorch wheels for one CUDA version, over the PyTorch versions that support the same GPUs."""

    cuda: str
    """As its index calls it, for example `cu126`."""
    first: str
    last: str | None
    """None while newer ones still come."""
    capabilities: tuple[str, ...]
    default_from: str | None
    """First PyTorch that pip gives this one of when no index is named; None for one that is never the default."""
    default_to: str | None
    """Last such PyTorch; None while newer ones still come, or for one that is never the default."""
    source: str


@dataclass(frozen=True)
class FabricMinimum:
    """The minimum software versions for EFA on an instance type; None if unknown."""

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
    """Month -> what is in it; months that nobody looked up are not in it."""
    images: tuple[FrameworkImage, ...]
    torch: tuple[TorchWheels, ...]
    fabric: Mapping[str, FabricMinimum]
    """By instance type."""


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
