"""`cloudgpu offers`: list the instance offers for a recipe and explain why each was accepted or rejected."""

from typing import Annotated

import typer

from cloudgpu.cli.commands.option_groups import AssignmentOptions, with_option_groups
from cloudgpu.cli.commands.options import Json, On, RecipeName, Region
from cloudgpu.cli.context import plans
from cloudgpu.cli.context.hosts import refuse_on_hosts
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.offers import offers_json, offers_lines
from cloudgpu.cli.render.plan import remedy_lines
from cloudgpu.errors import NoCapacityError
from cloudgpu.plan.candidates.explain import explain


@with_option_groups
def offers(
    *,
    recipe: RecipeName,
    on: On = None,
    changes: AssignmentOptions,
    all_regions: Annotated[
        bool, typer.Option("--all-regions", help="Search every region enabled for the account.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Use only the catalog; make no cloud calls.")] = False,
    region: Region = None,
    json: Json = False,
) -> None:
    """List the instance offers for a recipe in failover order.

    Shows the price, zone and quota of every candidate, and for every rejected offer the rule that rejected it. Changes
    nothing. Exits 4 if there is no candidate.
    """
    wiring = wire(json=json, target=on, region=region)
    refuse_on_hosts(wiring.settings.target, "offers")
    planned = plans.plan_recipe(wiring, recipe, changes.assignments, offline=offline, all_regions=all_regions)
    verdicts = explain(planned.question)
    if json:
        wiring.screen.document(offers_json(planned.plan, planned.question, verdicts))
    else:
        lines = offers_lines(planned.plan, planned.question, verdicts)
        wiring.screen.lines([*lines, *remedy_lines(planned.plan)])
    if not planned.plan.candidates:
        raise typer.Exit(NoCapacityError.exit_code)
