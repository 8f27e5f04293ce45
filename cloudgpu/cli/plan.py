"""`cloudgpu plan`: what a recipe would do and cost. Changes nothing."""

from pathlib import Path
from typing import Annotated

import typer

from cloudgpu.cli.options import Json, On, PreferOption, RecipeName, Region, Sets, preferring


def plan(  # noqa: PLR0917
    recipe: RecipeName,
    on: On = None,
    sets: Sets = None,
    prefer: PreferOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Plan from the catalogue alone; ask no cloud.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Tell which rule kept every candidate, or threw it out.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the plan down, for `up --plan` and `train --plan`."),
    ] = None,
    region: Region = None,
    json: Json = False,
) -> None:
    """Show what a recipe would do and cost.

    Shows candidates in the order they would be tried, prices, the worst case and every finding; changes nothing.
    Exits 7 when a finding forbids the recipe, 3 when only its budget does.
    """
    from cloudgpu.app.plan_files import save
    from cloudgpu.app.planning import refuse
    from cloudgpu.cli.show_offers import explained_json, explained_lines
    from cloudgpu.cli.show_plan import plan_lines
    from cloudgpu.cli.wiring import wire
    from cloudgpu.errors import UsageError
    from cloudgpu.plan.explain import explain as explained

    if out is not None and offline:
        raise UsageError("--out needs machine images and an account", hint="plan without --offline")
    wiring = wire(json=json, target=on, region=region)
    assigned = preferring(sets, prefer)
    planned = wiring.planned(recipe, assigned, offline=offline)
    verdicts = explained(planned.question) if explain else ()
    if json:
        more = explained_json(verdicts) if explain else {}
        wiring.screen.document({**planned.plan.as_json(), **more})
    else:
        why = ["", *explained_lines(planned.plan, verdicts)] if explain else []
        wiring.screen.lines([*plan_lines(planned.plan, ""), *why])
    if planned.plan.errors:
        raise typer.Exit(refuse(planned.plan).exit_code)
    if out is not None:
        now, world = wiring.clock.now(), wiring.world_of(planned, out)
        save(out, planned, world, sets=assigned, region=wiring.settings.region, now=now)
