"""`cloudgpu plan`: what a recipe would do and cost. Changes nothing."""

from typing import Annotated

import typer

from cloudgpu.cli.options import Json, On, RecipeName, Region, Sets


def plan(
    recipe: RecipeName,
    on: On = None,
    sets: Sets = None,
    offline: Annotated[bool, typer.Option("--offline", help="Plan from the catalogue alone; ask no cloud.")] = False,
    region: Region = None,
    json: Json = False,
) -> None:
    """Show what a recipe would do and cost.

    Shows candidates in the order they would be tried, prices, the worst case and every finding; changes nothing.
    Exits 7 when a finding forbids the recipe, 3 when only its budget does.
    """
    from cloudgpu.app.planning import refuse
    from cloudgpu.cli.show_plan import plan_lines
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json, target=on, region=region)
    planned = wiring.planned(recipe, sets or [], offline=offline)
    if json:
        wiring.screen.document(planned.plan.as_json())
    else:
        wiring.screen.lines(plan_lines(planned.plan, ""))
    if planned.plan.errors:
        raise typer.Exit(refuse(planned.plan).exit_code)
