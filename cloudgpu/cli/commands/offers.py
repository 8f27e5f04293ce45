"""`cloudgpu offers`: list the instance offers for a recipe and explain why each was accepted or rejected."""

from typing import Annotated

import typer

from cloudgpu.backends.factory import require_launches
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.groups import AssignmentOptions, with_option_groups
from cloudgpu.cli.options.shared import Json, On, RecipeName, Region
from cloudgpu.cli.planning.request import plan_recipe
from cloudgpu.cli.render.offers import offers_json, offers_lines
from cloudgpu.cli.render.plan import remedy_lines
from cloudgpu.errors import NoCapacityError
from cloudgpu.plan.candidates.candidate_list import explain_candidates


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
    context = command_context(json=json, target=on, region=region, allowed_paths=changes.allowed_paths)
    require_launches(context.settings.target, "offers")
    planned = plan_recipe(context, recipe, changes.assignments, offline=offline, all_regions=all_regions)
    verdicts = explain_candidates(planned.question)
    if json:
        context.screen.document(offers_json(planned.plan, planned.question, verdicts))
    else:
        lines = offers_lines(planned.plan, planned.question, verdicts, context.screen.width)
        context.screen.lines([*lines, *remedy_lines(planned.plan)])
    if not planned.plan.candidates:
        raise typer.Exit(NoCapacityError.exit_code)
