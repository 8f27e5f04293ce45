"""`cloudgpu containers`: list framework containers and the GPUs they support."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cloudgpu.app.planning.catalog_search import ContainerListing, ContainerQuery, MatchingContainer, find_containers
from cloudgpu.catalog.compatibility import month_of, software
from cloudgpu.cli import completion
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines

UNKNOWN = "unknown"
_IMAGE = Column("image", priority=4, whole=True, label="")
_CODE = Column("native code for", priority=2)
_DETAILS = (
    Column("CUDA"),
    Column("driver", priority=3),
    Column("tag", priority=6, narrow="hide"),
    Column("last for", priority=5),
)


def container_lines(listing: ContainerListing, width: int | None = None) -> list[str]:
    """Return one line per container and a legend, or a single line if no container matches."""
    gpu = listing.gpu
    if not listing.containers:
        return [f"no known container runs on {gpu.name}" if gpu else "no known container matches"]
    fit = () if gpu is None else (Column(f"on {gpu.name}", priority=1),)
    rows = [_row(container) for container in listing.containers]
    table = Table((Column("framework"), _IMAGE, _CODE, *fit, *_DETAILS), rows)
    return [*table.lines(width), "", *wrap_lines(list(_legend(listing)), width)]


def containers_json(listing: ContainerListing) -> dict[str, Any]:
    """Return the containers as JSON; null means unknown."""
    return {
        "gpu": None if listing.gpu is None else listing.gpu.name,
        "latest": listing.latest,
        "images": [_json(container) for container in listing.containers],
    }


def _row(container: MatchingContainer) -> tuple[str, ...]:
    image, release, verdict = container.image, container.release, container.verdict
    drivers = UNKNOWN
    if release is not None:
        older = f" (or {', '.join(f'R{branch}' for branch in release.other_drivers)})" if release.other_drivers else ""
        drivers = f"R{release.driver}{older}"
    return (
        image.framework,
        image.image,
        _code(container),
        *(() if verdict is None else (verdict.fit,)),
        UNKNOWN if release is None else release.cuda,
        drivers,
        "not seen" if image.recalled else "seen",
        ", ".join(image.last_for),
    )


def _code(container: MatchingContainer) -> str:
    """Format the architectures and compute capabilities with native code, such as `Volta to Ampere (7.0 to 8.6)`."""
    image = container.image
    if image.lowest is None:
        return UNKNOWN
    built = f"{image.lowest} to {image.highest}" if image.highest else f"{image.lowest} and newer"
    names = list(dict.fromkeys(gpu.architecture for gpu in container.natives))
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "none in the catalog"
    return f"{span} ({built})"


def _json(container: MatchingContainer) -> dict[str, Any]:
    image, release = container.image, container.release
    return {
        "framework": image.framework,
        "image": image.image,
        "native_gpus": [gpu.name for gpu in container.natives],
        "lowest": image.lowest,
        "highest": image.highest,
        "month": month_of(image.image) or None,
        "cuda": None if release is None else release.cuda,
        "driver": None if release is None else release.driver,
        "other_drivers": [] if release is None else list(release.other_drivers),
        "last_for": list(image.last_for),
        "fit": None if container.verdict is None else container.verdict.fit,
        "why": None if container.verdict is None else container.verdict.why,
        "recalled": image.recalled,
        "source": image.source,
    }


def _legend(listing: ContainerListing) -> Iterator[str]:
    fits = {container.verdict.fit for container in listing.containers if container.verdict is not None}
    yield "native code: architectures, with compute capabilities in parentheses"
    yield "driver: branch that the CUDA version requires, with older branches for data-center GPUs in parentheses"
    yield "tag: whether a public source mentions it"
    if "untuned" in fits and listing.gpu is not None:
        yield f"untuned: built for older GPUs; {listing.gpu.name} runs that code, but libraries are not tuned for it"
    if listing.gpu is None:
        yield "to show the latest container of each framework for a GPU: cloudgpu containers --latest-for V100"
    yield "to list your own machine images, which nodes boot: cloudgpu image list"


def containers(
    framework: Annotated[str, typer.Option("--framework", help="Show only this framework, such as pytorch.")] = "",
    gpu: Annotated[
        str,
        typer.Option(
            "--gpu",
            help="Omit containers that cannot run on this GPU, and show how well each container supports it.",
            autocompletion=completion.gpus,
        ),
    ] = "",
    latest_for: Annotated[
        str,
        typer.Option(
            "--latest-for",
            metavar="GPU",
            autocompletion=completion.gpus,
            help="For each framework, show only the latest container that was compiled for this GPU.",
        ),
    ] = "",
    json: Json = False,
) -> None:
    """List framework containers and the GPUs they run on.

    Lists container images for PyTorch, TensorFlow, MXNet and other frameworks. A container runs on a GPU if it has
    native code for the GPU's compute capability, or for a lower minor version of the same major version. To manage the
    machine images that nodes boot, use `cloudgpu image`.
    """
    context = command_context(json=json, quits=True)
    listing = find_containers(ContainerQuery(framework, gpu, latest_for), context.catalog, software())
    if json:
        context.screen.document(containers_json(listing))
    else:
        context.screen.lines(container_lines(listing, context.screen.width))
