"""`images`: which framework containers there are, and how each fits a GPU."""

from dataclasses import dataclass

from cloudgpu.catalog import Catalog, Gpu
from cloudgpu.catalog.compatibility import Verdict, judged, latest, release_of
from cloudgpu.catalog.profile import named
from cloudgpu.catalog.software import FrameworkImage, NgcMonth, Software
from cloudgpu.errors import UsageError
from cloudgpu.recipe.nearest import suggestion


@dataclass(frozen=True)
class ImageQuery:
    """What was typed, option by option."""

    framework: str = ""
    gpu: str = ""
    latest_for: str = ""


@dataclass(frozen=True)
class Container:
    """One image."""

    image: FrameworkImage
    release: NgcMonth | None
    """What its month holds; None where nobody looked it up."""
    natives: tuple[Gpu, ...]
    """GPUs that it has native code for, the oldest first."""
    verdict: Verdict | None
    """How it fits the GPU that was asked about; None when none was."""


@dataclass(frozen=True)
class Listing:
    """What was found, and for which GPU it was judged."""

    containers: tuple[Container, ...]
    gpu: Gpu | None
    latest: bool


def containers(sought: ImageQuery, catalog: Catalog, software: Software) -> Listing:
    """The containers that were asked for, in the order of the catalogue; with a GPU, only those that run on it.

    Raises:
        UsageError: No container of this framework is known, or both options that name a GPU were given.
        RecipeError: The GPU is not in the catalogue.
    """
    if sought.gpu and sought.latest_for:
        message = "--gpu and --latest-for both name a GPU"
        raise UsageError(message, hint="give one of them: --latest-for shows only the last container of each framework")
    name = sought.latest_for or sought.gpu
    gpu = named(catalog, name) if name else None
    shown = software.images if gpu is None or not sought.latest_for else latest(software, gpu)
    framework = _framework(software, sought.framework)
    found = []
    for image in shown:
        verdict = None if gpu is None else judged(image, gpu)
        if framework in ("", image.framework) and (verdict is None or verdict.fit != "no"):
            found.append(Container(image, release_of(image.image, software), _natives(catalog, image), verdict))
    return Listing(tuple(found), gpu, latest=bool(sought.latest_for))


def _natives(catalog: Catalog, image: FrameworkImage) -> tuple[Gpu, ...]:
    native = [gpu for gpu in catalog.gpus.values() if judged(image, gpu).fit == "native"]
    return tuple(sorted(native, key=lambda gpu: (gpu.sm, gpu.name)))


def _framework(software: Software, said: str) -> str:
    known = {image.framework.lower(): image.framework for image in software.images}
    if said and said.lower() not in known:
        message = f"--framework {said}: no container of it is known{suggestion(said, known.values())}"
        raise UsageError(message, hint=f"known frameworks: {', '.join(known.values())}")
    return known[said.lower()] if said else ""
