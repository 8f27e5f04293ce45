"""`cloudgpu gpus`: compare GPUs by memory, speed and price."""

from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from cloudgpu.app.planning.catalog_search import GpuQuery, search_gpus
from cloudgpu.catalog.compatibility import profile, software
from cloudgpu.cli import completion
from cloudgpu.cli.context import command_context
from cloudgpu.cli.lazy import StrictOptions
from cloudgpu.cli.options.shared import Json, On, integer_parser
from cloudgpu.cli.render.gpu import profile_json, profile_lines
from cloudgpu.cli.render.gpus import gpu_search_json, gpu_search_lines
from cloudgpu.errors import UsageError
from cloudgpu.text import command

HELP = """Compare GPUs by memory, speed and price.

Shows one line for each instance type, a kind of machine with one or more GPUs of the same model. Memory, memory
bandwidth (TB/s) and FP16 rate (PFLOP/s) are nominal values for the whole machine. Prices come from the local
catalog; no cloud calls are made. The last lines suggest what to run next.

\b
8 GPUs with at least 32 GB each:   cloudgpu gpus --count 8 --min-memory 32GB
All data about one GPU:            cloudgpu gpus show V100
"""


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


@app.callback(invoke_without_command=True, help=HELP)
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
    """Compare GPUs; see `HELP`."""
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
