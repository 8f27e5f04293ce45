"""`cloudgpu catalog`: what is known of types and prices, and how to know it better."""

from typing import Annotated

import typer

from cloudgpu.cli.commands.options import Json, On, whole
from cloudgpu.errors import CloudError
from cloudgpu.text import command

app = typer.Typer(
    help="What is known of types and prices, and since when.", no_args_is_help=True, rich_markup_mode=None
)

Regions = Annotated[
    list[str] | None, typer.Option("--region", help="A region to read (settings: region); may be repeated.")
]
AllRegions = Annotated[bool, typer.Option("--all-regions", help="Every region that the account can use.")]
Number = Annotated[
    int | None,
    typer.Argument(
        metavar="[NUMBER]", parser=whole(), help="As `catalog history` counts; 0 is the catalogue as shipped."
    ),
]


@app.command("refresh")
def refresh(regions: Regions = None, all_regions: AllRegions = False, on: On = None, json: Json = False) -> None:
    """Read types, zones, prices, images and quotas anew.

    Asks the cloud and lays what it tells over the catalogue of this home, for this target alone. Plans use it from then
    on. Shows what changed; `catalog revert` takes it back. A region or source that does not tell stays as it was known,
    and the command ends with 8.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.catalog import refreshed_json, refreshed_lines

    wiring = wire(json=json, target=on)
    wanted = [] if all_regions else regions or [wiring.settings.region]
    done = wiring.refreshing().refresh(wanted, everywhere=all_regions)
    if json:
        wiring.screen.document(refreshed_json(done))
    else:
        wiring.screen.lines(refreshed_lines(done))
    if done.unread:
        raise typer.Exit(CloudError.exit_code)


@app.command("show")
def show(
    region: Annotated[str, typer.Option("--region", help="Only what was read of this region.")] = "",
    on: On = None,
    json: Json = False,
) -> None:
    """Show where figures come from, and how old they are.

    Asks no cloud.
    """
    from cloudgpu.app.planning.catalog_age import knowledge
    from cloudgpu.catalog import load
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.catalog import knowledge_json, knowledge_lines

    wiring = wire(json=json, quits=True, target=on)
    found = knowledge(wiring.overlays, wiring.settings.target, load(), region)
    now = wiring.clock.now()
    if json:
        wiring.screen.document(knowledge_json(found, now))
    else:
        wiring.screen.lines(knowledge_lines(found, now))


@app.command("history")
def history(number: Number = None, on: On = None, json: Json = False) -> None:
    """Show the refreshes that can be gone back to.

    With a number: everything that this one changed. Asks no cloud.
    """
    from cloudgpu.cli.context.wiring import wire
    from cloudgpu.cli.render.catalog import entry_lines, history_json, history_lines
    from cloudgpu.errors import UsageError

    wiring = wire(json=json, quits=True, target=on)
    found = wiring.overlays.history()
    one = None if number is None else found.entry(number)
    if number is not None and one is None:
        message = f"there is no overlay {number} for {wiring.settings.target}"
        raise UsageError(message, hint=command("cloudgpu", "catalog", "history", "--on", wiring.settings.target))
    if json:
        wiring.screen.document(history_json(found, wiring.settings.target, one))
    else:
        wiring.screen.lines(entry_lines(one) if one else history_lines(found, wiring.settings.target))


@app.command("revert")
def revert(number: Number = None, on: On = None, json: Json = False) -> None:
    """Go back to what was known before a refresh.

    Without a number to what the last refresh was laid over. 0 is the catalogue that came with cloudgpu, and works also
    when files are damaged. Nothing is deleted: `catalog revert` with a later number goes forward again.
    """
    from cloudgpu.cli.context.wiring import wire

    wiring = wire(json=json, target=on)
    target = wiring.settings.target
    before, after = wiring.overlays.revert(number)
    if json:
        simulated = target == "rehearsal"
        wiring.screen.document({"target": target, "simulated": simulated, "was": before, "overlay": after})
    else:
        held = f"overlay {after}" if after else "the catalogue that came with cloudgpu"
        wiring.screen.line(f"{target}: {held} holds again (was {before})")
