"""`containers`: list framework containers and their compatibility with a GPU."""

from dataclasses import dataclass

from cloudgpu.catalog import Catalog, Gpu
from cloudgpu.catalog.compatibility import ContainerFit, container_fit, latest, release_of
from cloudgpu.catalog.profile import find_gpu
from cloudgpu.catalog.software import FrameworkImage, NgcMonth, Software
from cloudgpu.errors import UsageError
from cloudgpu.recipe.name_suggestions import suggestion


@dataclass(frozen=True)
class ContainerQuery:
    """The options of `containers` as typed."""

    framework: str = ""
    gpu: str = ""
    latest_for: str = ""


@dataclass(frozen=True)
class MatchingContainer:
    """A container image with its contents and GPU compatibility."""

    image: FrameworkImage
    release: NgcMonth | None
    """Contents of the image's monthly release, or None if unknown."""
    natives: tuple[Gpu, ...]
    """GPUs for which the image contains native code, by ascending compute capability."""
    verdict: ContainerFit | None
    """Compatibility with the requested GPU, or None if no GPU was requested."""


@dataclass(frozen=True)
class ContainerListing:
    """The matching containers, and the GPU for which they were checked, if any."""

    containers: tuple[MatchingContainer, ...]
    gpu: Gpu | None
    latest: bool


def find_containers(query: ContainerQuery, catalog: Catalog, software: Software) -> ContainerListing:
    """Return the matching containers in catalog order; if a GPU is given, only containers that run on it.

    Raises:
        UsageError: The framework is unknown, or both `--gpu` and `--latest-for` were given.
        RecipeError: The GPU is not in the catalog.
    """
    if query.gpu and query.latest_for:
        message = "--gpu and --latest-for are mutually exclusive"
        raise UsageError(
            message, hint="use one of them; --latest-for shows only the latest container of each framework"
        )
    name = query.latest_for or query.gpu
    gpu = find_gpu(catalog, name) if name else None
    images = software.images if gpu is None or not query.latest_for else latest(software, gpu)
    framework = _framework(software, query.framework)
    matches = []
    for image in images:
        verdict = None if gpu is None else container_fit(image, gpu)
        if framework in ("", image.framework) and (verdict is None or verdict.fit != "no"):
            matches.append(
                MatchingContainer(image, release_of(image.image, software), _natives(catalog, image), verdict)
            )
    return ContainerListing(tuple(matches), gpu, latest=bool(query.latest_for))


def _natives(catalog: Catalog, image: FrameworkImage) -> tuple[Gpu, ...]:
    native = [gpu for gpu in catalog.gpus.values() if container_fit(image, gpu).fit == "native"]
    return tuple(sorted(native, key=lambda gpu: (gpu.sm, gpu.name)))


def _framework(software: Software, name: str) -> str:
    known = {image.framework.lower(): image.framework for image in software.images}
    if name and name.lower() not in known:
        message = f"--framework {name}: no known container includes this framework{suggestion(name, known.values())}"
        raise UsageError(message, hint=f"known frameworks: {', '.join(known.values())}")
    return known[name.lower()] if name else ""
