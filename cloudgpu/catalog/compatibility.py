"""Decide whether a framework container runs on a GPU, from the native code in it. Pure."""

import re
from dataclasses import dataclass, replace
from typing import Final, Literal

from cloudgpu.catalog.hardware import Gpu
from cloudgpu.catalog.software import FrameworkImage, NgcMonth, Software

Fit = Literal["native", "untuned", "unknown", "no"]
"""`untuned`: code of an older GPU of the same major version runs on it, with the libraries of that time."""

_NGC: Final = re.compile(r"^nvcr\.io/nvidia/[a-z0-9-]+:([0-9][0-9]\.[0-9][0-9])(?:\D|$)")


@dataclass(frozen=True)
class ContainerFit:
    """How a container fits a GPU, and why if the fit is not native."""

    fit: Fit
    why: str = ""


def judged(image: FrameworkImage, gpu: Gpu) -> ContainerFit:
    """Return how an image fits a GPU. Without an end, an image fits from the first month that supports the GPU."""
    if image.lowest is None:
        return ContainerFit("unknown", "nobody looked up which GPUs it has native code for")
    if sm(image.lowest) > gpu.sm:
        return ContainerFit("no", f"its native code begins with {image.lowest}, {gpu.name} is {gpu.compute_capability}")
    return _judged_open(image, gpu) if image.highest is None else _judged_closed(image.highest, gpu)


def _judged_open(image: FrameworkImage, gpu: Gpu) -> ContainerFit:
    month = month_of(image.image)
    if month and gpu.first_ngc is not None and month < gpu.first_ngc:
        return ContainerFit("no", f"the first month that knows {gpu.name} is {gpu.first_ngc}")
    return ContainerFit("native")


def _judged_closed(highest: str, gpu: Gpu) -> ContainerFit:
    if gpu.sm <= sm(highest):
        return ContainerFit("native")
    if gpu.sm // 10 == sm(highest) // 10:
        return ContainerFit("untuned", f"runs code made for {highest}")
    return ContainerFit("no", f"its native code ends with {highest}, {gpu.name} is {gpu.compute_capability}")


def month_of(image: str) -> str:
    """Return the month of one of NVIDIA's monthly containers, such as `24.12`; empty for others."""
    match = _NGC.match(image)
    return match[1] if match else ""


def release_of(image: str, known: Software) -> NgcMonth | None:
    """Return the content of one of NVIDIA's monthly containers, or None if unknown."""
    month = known.ngc.get(month_of(image))
    own = next(
        (
            candidate_image.cuda
            for candidate_image in known.images
            if candidate_image.image == image and candidate_image.cuda
        ),
        None,
    )
    return month if month is None or own is None else replace(month, cuda=own)


def latest(known: Software, gpu: Gpu) -> tuple[FrameworkImage, ...]:
    """Return the newest image of every framework with native code for a GPU, in data order."""
    found: dict[str, FrameworkImage] = {}
    for image in known.images:
        if judged(image, gpu).fit == "native":
            best = found.get(image.framework)
            if best is None or month_of(image.image) > month_of(best.image):
                found[image.framework] = image
    return tuple(found.values())


def sm(capability: str) -> int:
    """Return a compute capability as a number: 70 for `7.0`."""
    return int(capability.replace(".", ""))
