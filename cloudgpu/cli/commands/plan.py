"""`cloudgpu plan` shows what a recipe would do and cost; `cloudgpu offers` explains every instance offer. Read-only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloudgpu.app.planning.local_files import list_uploads
from cloudgpu.app.planning.plan_files import save
from cloudgpu.app.planning.planner import Planned, plan_error
from cloudgpu.backends.factory import require_launches
from cloudgpu.catalog.prices_and_quotas import quota_of
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import (
    AssignmentOptions,
    EngineOption,
    Json,
    On,
    RecipeName,
    Region,
    with_option_groups,
)
from cloudgpu.cli.planning import current_plan_inputs, plan_recipe, preview_requester
from cloudgpu.cli.render.plan import plan_lines, remedy_lines, upload_json, upload_lines
from cloudgpu.cli.terminal.progress_lines import resource_words
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.cli.train_options import EnvironmentOptions, secrets_in_files
from cloudgpu.errors import AuthError, NoCapacityError, UsageError
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.candidate_list import (
    ORDER_DESCRIPTIONS,
    CandidateExplanation,
    ExplanationGroup,
    explain_candidates,
    group_by_rule,
)
from cloudgpu.plan.capacity import is_reserved
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.plan import Plan, format_hourly_rate
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.text import command, plural

if TYPE_CHECKING:
    from cloudgpu.backends.lifecycle.results import ResourceForecast


_COLUMNS = (
    Column("try", right=True),
    Column("type"),
    Column("zone"),
    Column("market", priority=1),
    Column("USD/h per node", right=True, priority=2),
    Column("USD/h total", right=True),
    Column("priced on", priority=4, narrow="hide"),
    Column("quota (vCPUs)", priority=3, narrow="wrap"),
)
_LISTED = 8
"""Maximum number of zones or regions listed for one instance type. `--json` lists all of them."""


def offers_lines(
    plan: Plan, inputs: PlannerInput, explanations: Sequence[CandidateExplanation], width: int | None = None
) -> list[str]:
    """Return the candidates in the order in which they will be tried, then the offers that each rule rejected."""
    simulated = "  [simulated]" if plan.simulated else ""
    head = (
        f"{plan.recipe.name}: {plural(len(plan.candidates), 'candidate')} for {plural(plan.nodes, 'node')}{simulated}"
    )
    return [head, "", *_candidates(plan, inputs, width), *explanation_lines(plan, explanations, width)]


def explanation_lines(plan: Plan, explanations: Sequence[CandidateExplanation], width: int | None = None) -> list[str]:
    """Return the explanations by rule: the number of accepted offers, and a list of the rejected offers."""
    return wrap_lines(list(_explanations(plan, explanations)), width)


def _explanations(plan: Plan, explanations: Sequence[CandidateExplanation]) -> Iterator[str]:
    for group in group_by_rule(explanations):
        if group.kept:
            yield f"accepted: {group.count}; {group.explanations[0].why} [{group.rule}]"
            continue
        yield f"rejected: {group.count} [{group.rule}]"
        yield from _rejected_lines(group)
    if not explanations:
        yield f"there are no offers: the catalog does not contain the hardware that {plan.recipe.name} requests"


def _rejected_lines(group: ExplanationGroup) -> Iterator[str]:
    """Yield one line per type: the reason if only one offer was rejected, otherwise the zones or regions."""
    of_type: dict[str, list[CandidateExplanation]] = {}
    for explanation in group.explanations:
        of_type.setdefault(explanation.instance_type, []).append(explanation)
    for name, of_this_type in of_type.items():
        if len(of_this_type) == 1:
            yield f"    {of_this_type[0].label}: {of_this_type[0].why}"
            continue
        places = [explanation.zone or explanation.region or explanation.why for explanation in of_this_type]
        more = f" and {len(places) - _LISTED} more (--json lists all)" if len(places) > _LISTED else ""
        yield f"    {name} in {', '.join(places[:_LISTED])}{more}"


def offers_json(plan: Plan, inputs: PlannerInput, explanations: Sequence[CandidateExplanation]) -> dict[str, Any]:
    """Return the documented output of `offers --json`."""
    return {
        "recipe": plan.recipe.name,
        "target": plan.target,
        "simulated": plan.simulated,
        "nodes": plan.nodes,
        "prefer": plan.recipe.resources.prefer,
        "regions": list(inputs.regions),
        "priced_live": plan.priced_live,
        "candidates": [
            candidate.as_json()
            | {"hourly_usd": format(_in_all(candidate, plan), "f"), "quota": _quota_json(candidate, plan, inputs)}
            for candidate in plan.candidates
        ],
        **explanation_json(explanations),
        "findings": [finding.as_json() for finding in plan.findings],
    }


def explanation_json(explanations: Sequence[CandidateExplanation]) -> dict[str, Any]:
    """Return the explanation of every offer as JSON, and the number of offers that each rule accepted or rejected."""
    return {
        "considered": [explanation.as_json() for explanation in explanations],
        "rules": [
            {"rule": group.rule, "kept": group.kept, "count": group.count} for group in group_by_rule(explanations)
        ],
    }


def _candidates(plan: Plan, inputs: PlannerInput, width: int | None) -> list[str]:
    if not plan.candidates:
        return ["no candidates", ""]
    rows = [
        (
            str(place),
            candidate.instance_type,
            candidate.zone,
            candidate.market,
            format_hourly_rate(candidate.node_hourly_usd),
            format_hourly_rate(_in_all(candidate, plan)),
            candidate.priced_on.isoformat(),
            _quota(candidate, plan, inputs),
        )
        for place, candidate in enumerate(plan.candidates, start=1)
    ]
    order = f"tried in this order: {ORDER_DESCRIPTIONS[plan.recipe.resources.prefer]}"
    return [*Table(_COLUMNS, rows, "  ").lines(width), "", *wrap_lines([order], width), ""]


def _in_all(candidate: Candidate, plan: Plan) -> Decimal:
    return hourly_usd(candidate.costs(plan.nodes))


def _quota(candidate: Candidate, plan: Plan, inputs: PlannerInput) -> str:
    """Format the vCPU quota as `192 needed, 384 of 384 free`."""
    quota = _quota_json(candidate, plan, inputs)
    if quota is None:
        return "none (reserved)"
    if quota["free_vcpus"] is None:
        return f"{quota['needed_vcpus']} needed, headroom unknown"
    return f"{quota['needed_vcpus']} needed, {quota['free_vcpus']} of {quota['limit_vcpus']} free"


def _quota_json(candidate: Candidate, plan: Plan, inputs: PlannerInput) -> dict[str, Any] | None:
    """Return the quota as JSON; None for reservations, to which no quota applies."""
    if is_reserved(candidate.market):
        return None
    quota = quota_of(candidate.instance_type, candidate.market)
    headroom = inputs.quotes.quotas.get((candidate.region, quota.key))
    return {
        "code": quota.code or None,
        "name": quota.name,
        "needed_vcpus": plan.nodes * inputs.catalog.types[candidate.instance_type].vcpus,
        "limit_vcpus": None if headroom is None else headroom.limit_vcpus,
        "free_vcpus": None if headroom is None else headroom.free_vcpus,
    }


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
                "resources": None if forecasts is None else [forecast.as_json() for forecast in forecasts],
                **(explanation_json(explain_candidates(planned.inputs)) if explain else {}),
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


def _resource_lines(forecasts: "Sequence[ResourceForecast] | None") -> list[str]:
    return (
        ["", "would create:", *(f"    + {resource_words(forecast.type)} {forecast.name}" for forecast in forecasts)]
        if forecasts
        else []
    )


def _explanation_lines(planned: Planned, width: int | None) -> list[str]:
    return ["", *explanation_lines(planned.plan, explain_candidates(planned.inputs), width)]


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
