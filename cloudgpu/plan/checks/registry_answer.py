"""Check the recipe's image with its registry before the launch."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.plan import Severity
from cloudgpu.plan.survey import ImageSeen

_MACHINE: Final = "linux/amd64"
"""Every type of the catalogue is an x86_64 machine."""


@check("image-there", "error", "An image that cannot be pulled wastes the nodes that wait for it.")
def image_there(case: Case) -> Iterator[Issue]:
    """Report an image that does not exist, that the registry refuses, or that could not be checked."""
    seen = _seen(case)
    if seen is None or seen.presence == "there":
        return
    if seen.presence == "unknown":
        yield Issue(f"cannot tell whether {seen.image} can be pulled: {seen.why}", severity="unknown")
        return
    fix = "correct environment.container.image"
    if seen.presence == "refused":
        fix = "check environment.container.image, login and password"
    yield _told(case, seen, seen.why, fix)


@check("image-machine", "error", "An image for another CPU architecture fails at its first command.")
def image_fits_machine(case: Case) -> Iterator[Issue]:
    """Report an image that is not built for x86_64, which all instance types are."""
    seen = _seen(case)
    if seen is None or not seen.platforms or _MACHINE in seen.platforms:
        return
    made = f"{seen.image} is made for {', '.join(seen.platforms)}"
    if case.question.hosts is not None:
        yield Issue(f"{made}; the architecture of these hosts was not checked", severity="unknown")
        return
    yield _told(case, seen, f"{made}, and the nodes are {_MACHINE}", f"choose a tag that is made for {_MACHINE}")


def _seen(case: Case) -> ImageSeen | None:
    container = case.question.recipe.environment.container
    return None if container is None else case.question.quotes.survey.of_image(container.image)


def _told(case: Case, seen: ImageSeen, message: str, fix: str) -> Issue:
    """Lower the severity if a node may reach another registry by this name or already have the image."""
    recipe, severity = case.question.recipe, None
    own_nodes = case.question.hosts is not None or bool(recipe.resources.image)
    if seen.on_loopback:
        message, fix, severity = f"{message}; a node asks a registry of its own at this address", "", _UNKNOWN
    elif own_nodes and recipe.environment.container is not None and recipe.environment.container.pull == "missing":
        message, severity = f"{message}; only nodes that have the image already can run it", _WARNING
    return Issue(message, fix, severity)


_UNKNOWN: Final[Severity] = "unknown"
_WARNING: Final[Severity] = "warning"
