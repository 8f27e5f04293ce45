"""Catalog data about software, and which software and framework containers run on a GPU."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

from cloudgpu.catalog.catalog import Catalog, read_data_file
from cloudgpu.catalog.gpu_spec import parse_gpu_spec
from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.ranking import Offer, Replacement, SearchCriteria, rank_offers, replacements
from cloudgpu.catalog.unsupported import doubtful_type, unsupported_gpu, unsupported_type
from cloudgpu.errors import RecipeError
from cloudgpu.text import command

Fit = Literal["native", "untuned", "unknown", "no"]
"""`untuned` means that the container runs code built for a lower compute capability with the same major version."""
_NGC: Final = re.compile(r"^nvcr\.io/nvidia/[a-z0-9-]+:([0-9][0-9]\.[0-9][0-9])(?:\D|$)")


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
    stored = read_data_file("software.json")
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


@dataclass(frozen=True)
class ContainerFit:
    """How well a container image supports a GPU. `why` is the reason, empty if the support is native."""

    fit: Fit
    why: str = ""


def container_fit(image: FrameworkImage, gpu: Gpu) -> ContainerFit:
    """Return how well an image fits a GPU.

    If the image's highest compute capability is unknown, there is no upper limit, but an NGC image must be at least as
    new as the first NGC release that supports the GPU.
    """
    if image.lowest is None:
        return ContainerFit("unknown", "the catalog does not list the GPUs for which the image has native code")
    if sm(image.lowest) > gpu.sm:
        return ContainerFit(
            "no", f"its native code starts at {image.lowest}, but {gpu.name} has {gpu.compute_capability}"
        )
    return _fit_by_month(image, gpu) if image.highest is None else _fit_by_highest(image.highest, gpu)


def _fit_by_month(image: FrameworkImage, gpu: Gpu) -> ContainerFit:
    month = month_of(image.image)
    if month and gpu.first_ngc is not None and month < gpu.first_ngc:
        return ContainerFit("no", f"the first NGC release that supports {gpu.name} is {gpu.first_ngc}")
    return ContainerFit("native")


def _fit_by_highest(highest: str, gpu: Gpu) -> ContainerFit:
    if gpu.sm <= sm(highest):
        return ContainerFit("native")
    if gpu.sm // 10 == sm(highest) // 10:
        return ContainerFit("untuned", f"its newest native code is for {highest}")
    return ContainerFit("no", f"its native code stops at {highest}, but {gpu.name} has {gpu.compute_capability}")


def month_of(image: str) -> str:
    """Return the release of an NGC framework container, such as `24.12`; empty for any other image."""
    match = _NGC.match(image)
    return match[1] if match else ""


def release_of(image: str, known: Software) -> NgcMonth | None:
    """Return the data about an image's NGC release, with the image's CUDA version; None if the release is unknown."""
    month = known.ngc.get(month_of(image))
    image_cuda = next(
        (
            candidate_image.cuda
            for candidate_image in known.images
            if candidate_image.image == image and candidate_image.cuda
        ),
        None,
    )
    return month if month is None or image_cuda is None else replace(month, cuda=image_cuda)


def latest(known: Software, gpu: Gpu) -> tuple[FrameworkImage, ...]:
    """Return each framework's newest image with native code for a GPU, in the order of the data file."""
    newest: dict[str, FrameworkImage] = {}
    for image in known.images:
        if container_fit(image, gpu).fit == "native":
            best = newest.get(image.framework)
            if best is None or month_of(image.image) > month_of(best.image):
                newest[image.framework] = image
    return tuple(newest.values())


def sm(capability: str) -> int:
    """Return a compute capability as a number: 70 for `7.0`."""
    return int(capability.replace(".", ""))


@dataclass(frozen=True)
class Profile:
    """The catalog data about a GPU."""

    gpu: Gpu
    offers: tuple[Offer, ...]
    """Every type with the GPU, including retired types and machines outside AWS, priced in its cheapest region."""
    containers: tuple[FrameworkImage, ...]
    """Newest container of each framework with native code for the GPU."""
    wheels: tuple[TorchWheels, ...]
    """PyTorch wheels that run on the GPU."""
    replacements: tuple[Replacement, ...]
    note: str = ""
    """What to know about the instance type by which the GPU was requested, for example that it is retired."""


def profile(catalog: Catalog, software: Software, name: str, *, home_region: str) -> Profile:
    """Return the profile of a GPU, or of the GPU of an instance type. Case, dashes and spaces in a GPU are ignored."""
    gpu = find_gpu(catalog, name)
    matches = rank_offers(catalog, SearchCriteria(everything=True), "usd-per-hour", home_region=home_region)
    return Profile(
        gpu,
        tuple(offer for offer in matches.offers if offer.gpu.name == gpu.name),
        latest(software, gpu),
        tuple(wheels for wheels in software.torch if supports_gpu(wheels, gpu)),
        replacements(catalog, gpu, home_region=home_region),
        note=_note(catalog, name),
    )


def _note(catalog: Catalog, name: str) -> str:
    if name not in catalog.types:
        return ""
    return catalog.types[name].retirement or str(doubtful_type(name) or "")


def find_gpu(catalog: Catalog, name: str) -> Gpu:
    """Return a GPU by an informal name, spec or instance type: `v100`, `V100-32GB` or `p3dn.24xlarge`."""
    if name in catalog.types:
        return catalog.gpus[catalog.types[name].gpu]
    unsupported = unsupported_type(name) or unsupported_gpu(parse_gpu_spec(name).model)
    if unsupported is not None:
        raise RecipeError(str(unsupported), hint=command("cloudgpu", "gpus", "show", unsupported.replacement))
    folded = {_folded(known): known for known in catalog.gpus}
    known = folded.get(_folded(name)) or folded.get(_folded(parse_gpu_spec(name).model))
    return catalog.gpu(known or name)


def supports_gpu(wheels: TorchWheels, gpu: Gpu) -> bool:
    """Return True if the wheels have code for the GPU's compute capability or a lower one of the same major version."""
    return any(gpu.sm // 10 == sm(capability) // 10 and sm(capability) <= gpu.sm for capability in wheels.capabilities)


def _folded(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
