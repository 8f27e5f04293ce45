"""Decide whether a framework container runs on a GPU, based on the container's native code."""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.software import FrameworkImage, NgcMonth, Software

Fit = Literal["native", "untuned", "unknown", "no"]
"""`untuned` means that the container runs code built for a lower compute capability with the same major version."""

_NGC: Final = re.compile(r"^nvcr\.io/nvidia/[a-z0-9-]+:([0-9][0-9]\.[0-9][0-9])(?:\D|$)")


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
