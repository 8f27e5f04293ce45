"""Instance offers for a recipe as text and as JSON: candidates with price and quota, and rejected offers by rule."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.quotas import quota_of
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.plan.candidates.candidate import Candidate
from cloudgpu.plan.candidates.candidate_list import (
    ORDER_DESCRIPTIONS,
    CandidateExplanation,
    ExplanationGroup,
    group_by_rule,
)
from cloudgpu.plan.capacity import is_reserved
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.plan import Plan, format_hourly_rate
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.text import plural

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
    return [*Table(_COLUMNS, rows, "  ").lines(width), "", *wrap_lines([_order(plan)], width), ""]


def _order(plan: Plan) -> str:
    return f"tried in this order: {ORDER_DESCRIPTIONS[plan.recipe.resources.prefer]}"


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
