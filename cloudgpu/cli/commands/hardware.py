"""`cloudgpu gpus` compares GPUs by memory, speed and price; `cloudgpu containers` lists framework containers."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from cloudgpu.app.planning.catalog_search import (
    ContainerListing,
    ContainerQuery,
    GpuQuery,
    MatchingContainer,
    find_containers,
    search_gpus,
)
from cloudgpu.catalog.compatibility import month_of, profile, software
from cloudgpu.cli import completion
from cloudgpu.cli.context import command_context
from cloudgpu.cli.lazy import StrictOptions
from cloudgpu.cli.options import Json, On, integer_parser
from cloudgpu.cli.render.gpu_details import profile_json, profile_lines
from cloudgpu.cli.render.gpus import gpu_search_json, gpu_search_lines
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.errors import UsageError
from cloudgpu.text import command

_GPUS_HELP = """Compare GPUs by memory, speed and price.

Shows one line for each instance type, a kind of machine with one or more GPUs of the same model. Memory, memory
bandwidth (TB/s) and FP16 rate (PFLOP/s) are nominal values for the whole machine. Prices come from the local
catalog; no cloud calls are made. The last lines suggest what to run next.

\b
8 GPUs with at least 32 GB each:   cloudgpu gpus --count 8 --min-memory 32GB
All data about one GPU:            cloudgpu gpus show V100
"""
UNKNOWN = "unknown"
_IMAGE = Column("image", priority=4, whole=True, label="")
_CODE = Column("native code for", priority=2)
_DETAILS = (
    Column("CUDA"),
    Column("driver", priority=3),
    Column("tag", priority=6, narrow="hide"),
    Column("last for", priority=5),
)


class Gpus(StrictOptions, TyperGroup):
    """A command group that rejects `gpus V100` and suggests `gpus show V100`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer keeps its classes private
        """Return the subcommand."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise UsageError(
                f"`cloudgpu gpus` lists all GPUs and does not accept {args[0]}",
                hint=command("cloudgpu", "gpus", "show", args[0]),
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Gpus, rich_markup_mode=None)


@app.callback(invoke_without_command=True, help=_GPUS_HELP)
def gpus(  # noqa: PLR0917
    invocation: typer.Context,
    min_memory: Annotated[
        str,
        typer.Option(
            "--min-memory", metavar="SIZE", help="Minimum memory per GPU, such as 32GB or 24GiB. Default unit: GB."
        ),
    ] = "",
    min_total_memory: Annotated[
        str,
        typer.Option(
            "--min-total-memory",
            metavar="SIZE",
            help="Minimum total GPU memory per instance, such as 256GB. Default unit: GB.",
        ),
    ] = "",
    arch: Annotated[str, typer.Option("--arch", help="Show only this GPU architecture, such as volta.")] = "",
    count: Annotated[
        int | None, typer.Option("--count", parser=integer_parser(1, 999), help="Exact number of GPUs per instance.")
    ] = None,
    region: Annotated[
        str,
        typer.Option(
            "--region", help="Region of the offers to compare. Default: each instance type's cheapest region."
        ),
    ] = "",
    spot: Annotated[bool, typer.Option("--spot", help="Show prices of spot instances, which AWS can reclaim.")] = False,
    sort: Annotated[
        Literal["usd-per-hour", "memory", "bandwidth", "fp16", "usd-per-pflop-h", "usd-per-tb-s"],
        typer.Option(
            "--sort",
            help="Sort order. usd-per-pflop-h: price per FP16 PFLOP/s; usd-per-tb-s: per TB/s of memory bandwidth.",
        ),
    ] = "usd-per-hour",
    everything: Annotated[
        bool, typer.Option("--all", help="Include retired types and machines that are not from AWS.")
    ] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Compare GPUs; see `_GPUS_HELP`."""
    if invocation.invoked_subcommand is not None:
        _refuse_given(invocation)
        return
    context = command_context(json=json, quits=True, target=on)
    market: Literal["on-demand", "spot"] = "spot" if spot else "on-demand"
    query = GpuQuery(min_memory, min_total_memory, arch, count, region, market, everything, sort)
    results = search_gpus(query, context.catalog, context.settings.region)
    if json:
        context.screen.document(gpu_search_json(results))
    else:
        context.screen.lines(gpu_search_lines(results, context.clock.now().date(), context.screen.width))


def _refuse_given(invocation: typer.Context) -> None:
    """Reject options of `gpus` that precede a subcommand, because the subcommand would silently ignore them."""
    for option in invocation.command.params:
        if option.name and invocation.params.get(option.name) != option.get_default(invocation):
            message = f"{option.opts[0]} is an option of `gpus`, not of `gpus {invocation.invoked_subcommand}`"
            raise UsageError(message, hint="cloudgpu gpus show --help")


@app.command("show")
def show(
    gpu: Annotated[
        str,
        typer.Argument(
            metavar="GPU",
            help="GPU or instance type, such as V100 or g6.xlarge.",
            autocompletion=completion.gpus,
        ),
    ],
    sources: Annotated[bool, typer.Option("--sources", help="Also show where every value comes from.")] = False,
    on: On = None,
    json: Json = False,
) -> None:
    """Show everything known about one GPU.

    Shows its specifications, the drivers, CUDA versions, containers and PyTorch wheels that support it, the instance
    types that have it, and possible replacements.
    """
    context = command_context(json=json, quits=True, target=on)
    gpu_profile = profile(context.catalog, software(), gpu, home_region=context.settings.region)
    if json:
        context.screen.document(profile_json(gpu_profile))
    else:
        today = context.clock.now().date()
        context.screen.lines(profile_lines(gpu_profile, today, context.screen.width, sources=sources))


def container_lines(listing: ContainerListing, width: int | None = None) -> list[str]:
    """Return one line per container and a legend, or a single line if no container matches."""
    gpu = listing.gpu
    if not listing.containers:
        return [f"no known container runs on {gpu.name}" if gpu else "no known container matches"]
    fit = () if gpu is None else (Column(f"on {gpu.name}", priority=1),)
    rows = [_container_row(container) for container in listing.containers]
    table = Table((Column("framework"), _IMAGE, _CODE, *fit, *_DETAILS), rows)
    return [*table.lines(width), "", *wrap_lines(list(_container_legend(listing)), width)]


def containers_json(listing: ContainerListing) -> dict[str, Any]:
    """Return the containers as JSON; null means unknown."""
    return {
        "gpu": None if listing.gpu is None else listing.gpu.name,
        "latest": listing.latest,
        "images": [_container_json(container) for container in listing.containers],
    }


def _container_row(container: MatchingContainer) -> tuple[str, ...]:
    image, release, verdict = container.image, container.release, container.verdict
    drivers = UNKNOWN
    if release is not None:
        older = f" (or {', '.join(f'R{branch}' for branch in release.other_drivers)})" if release.other_drivers else ""
        drivers = f"R{release.driver}{older}"
    return (
        image.framework,
        image.image,
        _native_code(container),
        *(() if verdict is None else (verdict.fit,)),
        UNKNOWN if release is None else release.cuda,
        drivers,
        "not seen" if image.recalled else "seen",
        ", ".join(image.last_for),
    )


def _native_code(container: MatchingContainer) -> str:
    """Format the architectures and compute capabilities with native code, such as `Volta to Ampere (7.0 to 8.6)`."""
    image = container.image
    if image.lowest is None:
        return UNKNOWN
    built = f"{image.lowest} to {image.highest}" if image.highest else f"{image.lowest} and newer"
    names = list(dict.fromkeys(gpu.architecture for gpu in container.natives))
    span = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "none in the catalog"
    return f"{span} ({built})"


def _container_json(container: MatchingContainer) -> dict[str, Any]:
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


def _container_legend(listing: ContainerListing) -> Iterator[str]:
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
