"""Check that the registry has the recipe's container image and that the image is built for the nodes."""

from collections.abc import Iterator
from typing import Final

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.named_resources import ImageSeen
from cloudgpu.plan.plan import Severity

_MACHINE: Final = "linux/amd64"
"""Platform of every instance type in the catalog."""


@check("image-there", "error", "Nodes that wait for an image that cannot be pulled cost money and do nothing.")
def image_exists(case: CheckInput) -> Iterator[Issue]:
    """Report an image that does not exist, that the registry denies access to, or that could not be checked."""
    image = _image(case)
    if image is None or image.presence == "there":
        return
    if image.presence == "unknown":
        yield Issue(f"cannot tell whether {image.image} can be pulled: {image.why}", severity="unknown")
        return
    fix = "correct environment.container.image"
    if image.presence == "refused":
        fix = "check environment.container.image, login and password"
    yield _issue(case, image, image.why, fix)


@check("image-machine", "error", "An image for another CPU architecture fails at its first command.")
def image_fits_machine(case: CheckInput) -> Iterator[Issue]:
    """Report an image that is not built for x86_64, the architecture of every instance type."""
    image = _image(case)
    if image is None or not image.platforms or _MACHINE in image.platforms:
        return
    built_for = f"{image.image} is built for {', '.join(image.platforms)}"
    if case.question.hosts is not None:
        yield Issue(f"{built_for}; the architecture of these hosts was not checked", severity="unknown")
        return
    fix = f"choose a tag that is built for {_MACHINE}"
    yield _issue(case, image, f"{built_for}, but the nodes are {_MACHINE}", fix)


def _image(case: CheckInput) -> ImageSeen | None:
    container = case.question.recipe.environment.container
    return None if container is None else case.question.quotes.survey.of_image(container.image)


def _issue(case: CheckInput, image: ImageSeen, message: str, fix: str) -> Issue:
    """Return an issue, with a lower severity if nodes may still be able to run the image.

    The severity is lower if the image name refers to a different registry on the nodes, or if the nodes may already
    have the image.
    """
    recipe, severity = case.question.recipe, None
    may_have_image = case.question.hosts is not None or bool(recipe.resources.image)
    if image.on_loopback:
        message, fix, severity = f"{message}; on a node, this address is a different registry", "", _UNKNOWN
    elif may_have_image and recipe.environment.container is not None and recipe.environment.container.pull == "missing":
        message, severity = f"{message}; only nodes that already have the image can run it", _WARNING
    return Issue(message, fix, severity)


_UNKNOWN: Final[Severity] = "unknown"
_WARNING: Final[Severity] = "warning"
