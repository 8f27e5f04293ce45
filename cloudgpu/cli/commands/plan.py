"""`cloudgpu plan` shows what a recipe would do and cost; `cloudgpu offers` explains every instance offer. Read-only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudgpu.app.planning.local_files import list_uploads
from cloudgpu.app.planning.plan_files import save
from cloudgpu.app.planning.planner import Planned, plan_error
from cloudgpu.backends.factory import require_launches
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.environment import EnvironmentOptions, secrets_in_files
from cloudgpu.cli.options.groups import AssignmentOptions, with_option_groups
from cloudgpu.cli.options.shared import EngineOption, Json, On, RecipeName, Region
from cloudgpu.cli.planning.request import plan_recipe, preview_requester
from cloudgpu.cli.planning.source import current_plan_inputs
from cloudgpu.cli.render.offers import explanation_json, explanation_lines, offers_json, offers_lines
from cloudgpu.cli.render.plan import plan_lines, remedy_lines, upload_json, upload_lines
from cloudgpu.cli.terminal.progress import resource_words
from cloudgpu.errors import AuthError, NoCapacityError, UsageError
from cloudgpu.plan.candidates.candidate_list import explain_candidates
from cloudgpu.text import command

if TYPE_CHECKING:
    from cloudgpu.backends.lifecycle.results import ResourceForecast


@with_option_groups
def plan(
    *,
    recipe: RecipeName,
    on: On = None,
    changes: AssignmentOptions,
    environment: EnvironmentOptions,
    offline: Annotated[bool, typer.Option("--offline", help="Use only the catalog; make no cloud calls.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the rule that accepted or rejected each offer.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Save the plan for `up --plan` and `train --plan`."),
    ] = None,
    resources: Annotated[
        bool, typer.Option("--resources", help="Also list every resource that would be created.")
    ] = False,
    files: Annotated[
        bool,
        typer.Option("--files", help="Also list every file that a run uploads, and what is left out and why."),
    ] = False,
    region: Region = None,
    engine: EngineOption = None,
    json: Json = False,
) -> None:
    """Show what a recipe would do and cost.

    Shows the candidates in the order they would be tried, their prices, the worst-case cost and every problem found.
    Changes nothing. Exits 3 if only the budget prevents the run, and 7 if any other problem does.
    """
    if offline and (out is not None or resources):
        raise UsageError(
            "--out and --resources query the cloud, so they cannot be used with --offline",
            hint="remove --offline, or remove --out and --resources",
        )
    context = command_context(json=json, target=on, region=region, engine=engine, allowed_paths=changes.allowed_paths)
    if out is not None or resources or explain:
        require_launches(context.settings.target, "--out, --resources and --explain")
    assigned = [*changes.assignments, *environment.assignments]
    secrets = secrets_in_files(environment.secrets)
    with _offline_hint():
        planned = plan_recipe(context, recipe, assigned, offline=offline, secrets=secrets)
    forecasts = (
        context.backend().preview(planned.plan, planned.plan.recipe.name, preview_requester(context))
        if resources
        else None
    )
    listings = list_uploads(planned.plan.recipe, planned.base) if files else ()
    if json:
        context.screen.document(
            {
                **planned.plan.as_json(),
                **_resources_json(forecasts),
                **(_explanation_json(planned) if explain else {}),
                **(upload_json(listings) if files else {}),
            }
        )
    else:
        context.screen.lines(
            [
                *plan_lines(planned.plan, "", context.screen.width),
                *_resource_lines(forecasts),
                *(_explanation_lines(planned, context.screen.width) if explain else ()),
                *upload_lines(listings),
            ]
        )
    if planned.plan.errors:
        raise typer.Exit(plan_error(planned.plan).exit_code)
    if out is not None:
        now, inputs = context.clock.now(), current_plan_inputs(context, planned, out)
        save(out, planned, inputs, sets=assigned, region=context.settings.region, now=now, home=context.home)
        if not json:
            apply = command("cloudgpu", "train", "--plan", str(out))
            context.screen.wrapped(["", f"plan saved to {out}; to apply it: {apply}"])


@contextmanager
def _offline_hint() -> Iterator[None]:
    """Add to the hint for missing credentials that a plan needs none with --offline."""
    try:
        yield
    except AuthError as err:
        if err.code == "NoCredentials":
            err.hint = f"{err.hint}; to plan with the catalog alone, add --offline"
        raise


def _resources_json(forecasts: "Sequence[ResourceForecast] | None") -> dict[str, Any]:
    """Return the field `resources`, which is None if the resources were not previewed."""
    return {"resources": None if forecasts is None else [forecast.as_json() for forecast in forecasts]}


def _resource_lines(forecasts: "Sequence[ResourceForecast] | None") -> list[str]:
    return (
        ["", "would create:", *(f"    + {resource_words(forecast.type)} {forecast.name}" for forecast in forecasts)]
        if forecasts
        else []
    )


def _explanation_lines(planned: Planned, width: int | None) -> list[str]:
    return ["", *explanation_lines(planned.plan, explain_candidates(planned.inputs), width)]


def _explanation_json(planned: Planned) -> dict[str, Any]:
    return explanation_json(explain_candidates(planned.inputs))


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
    explanations = explain_candidates(planned.inputs)
    if json:
        context.screen.document(offers_json(planned.plan, planned.inputs, explanations))
    else:
        lines = offers_lines(planned.plan, planned.inputs, explanations, context.screen.width)
        context.screen.lines([*lines, *remedy_lines(planned.plan)])
    if not planned.plan.candidates:
        raise typer.Exit(NoCapacityError.exit_code)
