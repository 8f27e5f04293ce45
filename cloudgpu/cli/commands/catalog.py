"""`cloudgpu catalog`: show and refresh the catalog of instance types and prices."""

from typing import Annotated

import typer

from cloudgpu.app.planning.catalog_age import read_catalog_status
from cloudgpu.app.planning.catalog_refresh import CatalogRefresh
from cloudgpu.catalog import load
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json, On, Verbose, integer_parser
from cloudgpu.cli.render.catalog import (
    catalog_status_json,
    catalog_status_lines,
    entry_lines,
    history_json,
    history_lines,
    refresh_json,
    refresh_lines,
)
from cloudgpu.errors import CloudError, UsageError
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

app = typer.Typer(help="Show and refresh instance types and prices.", no_args_is_help=True, rich_markup_mode=None)

Regions = Annotated[
    list[str] | None, typer.Option("--region", help="Region to refresh. Default: the `region` setting. Repeatable.")
]
AllRegions = Annotated[bool, typer.Option("--all-regions", help="Refresh every region enabled for the account.")]
Number = Annotated[
    int | None,
    typer.Argument(
        metavar="[NUMBER]",
        parser=integer_parser(),
        help="Snapshot number from `catalog history`. For `revert`, 0 is the bundled catalog.",
    ),
]


@app.command("refresh")
def refresh(
    regions: Regions = None,
    all_regions: AllRegions = False,
    on: On = None,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Refresh types, zones, prices, images and quotas.

    Reads the data from the target's cloud and stores it in CLOUDGPU_HOME. Later plans for the same target use the new
    data. Prints the changes; to undo them, use `catalog revert`. If a region or source cannot be read, keeps its
    previous data and exits 8.
    """
    context = command_context(json=json, verbose=verbose, target=on)
    selected = [] if all_regions else regions or [context.settings.region]
    source = context.backend().catalog_source()
    refreshing = CatalogRefresh(source, context.catalog_snapshots, load(), context.clock, context.emit)
    with context.screen.working("refresh"):
        result = refreshing.refresh(selected, everywhere=all_regions)
    if json:
        context.screen.document(refresh_json(result))
    else:
        context.screen.lines(refresh_lines(result, context.screen.width))
    if result.unread:
        raise typer.Exit(CloudError.exit_code)


@app.command("show")
def show(
    region: Annotated[str, typer.Option("--region", help="Show only this region's data.")] = "",
    on: On = None,
    json: Json = False,
) -> None:
    """Show the source and age of the catalog's data.

    Makes no cloud calls.
    """
    context = command_context(json=json, quits=True, target=on)
    catalog_status = read_catalog_status(context.catalog_snapshots, context.settings.target, load(), region)
    now = context.clock.now()
    if json:
        context.screen.document(catalog_status_json(catalog_status, now))
    else:
        context.screen.lines(catalog_status_lines(catalog_status, now, context.screen.width))


@app.command("history")
def history(number: Number = None, on: On = None, json: Json = False) -> None:
    """List the refreshes that you can revert to.

    With a number, shows all changes made by that refresh. Makes no cloud calls.
    """
    context = command_context(json=json, quits=True, target=on)
    refreshes = context.catalog_snapshots.history()
    entry = None if number is None else refreshes.entry(number)
    if number is not None and entry is None:
        message = f"there is no snapshot {number} for {context.settings.target}"
        raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", context.settings.target))
    if json:
        context.screen.document(history_json(refreshes, context.settings.target, entry))
    else:
        target, width = context.settings.target, context.screen.width
        context.screen.lines(entry_lines(entry, width) if entry else history_lines(refreshes, target, width))


@app.command("revert")
def revert(number: Number = None, on: On = None, json: Json = False) -> None:
    """Restore the catalog as of an earlier refresh.

    Without a number, undoes the active refresh. With 0, restores the catalog bundled with cloudgpu, even if the stored
    data is damaged. To return to a later refresh, specify its snapshot number.
    """
    context = command_context(json=json, target=on)
    target = context.settings.target
    before, after = context.catalog_snapshots.revert(number)
    if json:
        simulated = is_simulated(target)
        context.screen.document({"target": target, "simulated": simulated, "was": before, "overlay": after})
    else:
        previous, current = (
            f"snapshot {shown}" if shown else "the catalog bundled with cloudgpu" for shown in (before, after)
        )
        context.screen.wrapped([f"{target}: {current} is in use again (previously: {previous})"])
