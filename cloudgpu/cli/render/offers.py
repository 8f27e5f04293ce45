"""What could carry a recipe: the candidates with price and quota, and what the rules threw out; text and JSON."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from cloudgpu.catalog.quotas import quota_of
from cloudgpu.cli.terminal.figures import plural
from cloudgpu.cli.terminal.table import columns
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.explain import PLACES, CandidateExplanation, Group, grouped
from cloudgpu.plan.money import shown
from cloudgpu.plan.plan import Plan
from cloudgpu.plan.question import Question
from cloudgpu.plan.reservations import is_reserved

_HEADINGS = ("try", "type", "zone", "market", "USD/h a node", "USD/h in all", "priced on", "quota (vCPUs)")
_RIGHT = frozenset({0, 4, 5})
_LISTED = 8
"""Places of one type; `--json` has all of them."""


def offers_lines(plan: Plan, question: Question, verdicts: Sequence[CandidateExplanation]) -> list[str]:
    """The candidates as they would be tried, then every rule with what it threw out."""
    simulated = "  [simulated]" if plan.simulated else ""
    head = (
        f"{plan.recipe.name}: {plural(len(plan.candidates), 'candidate')} for {plural(plan.nodes, 'node')}{simulated}"
    )
    return [head, "", *_candidates(plan, question), *explained_lines(plan, verdicts)]


def explained_lines(plan: Plan, verdicts: Sequence[CandidateExplanation]) -> Iterator[str]:
    """Every verdict, grouped by its rule: those that were kept are counted, those thrown out are told."""
    for group in grouped(verdicts):
        if group.kept:
            yield f"kept by every rule: {group.count}; {group.verdicts[0].why} [{group.rule}]"
            continue
        yield f"thrown out: {group.count} [{group.rule}]"
        yield from _thrown_out(group)
    if not verdicts:
        yield f"nothing was considered: {plan.recipe.name} names no hardware that is known"


def _thrown_out(group: Group) -> Iterator[str]:
    """One line a type: with the reason where it is one place, with the places where they are several."""
    of_type: dict[str, list[CandidateExplanation]] = {}
    for one in group.verdicts:
        of_type.setdefault(one.instance_type, []).append(one)
    for name, those in of_type.items():
        if len(those) == 1:
            yield f"    {those[0].label}: {those[0].why}"
            continue
        places = [one.zone or one.region or one.why for one in those]
        more = f" and {len(places) - _LISTED} more (--json lists all)" if len(places) > _LISTED else ""
        yield f"    {name} in {', '.join(places[:_LISTED])}{more}"


def offers_json(plan: Plan, question: Question, verdicts: Sequence[CandidateExplanation]) -> dict[str, Any]:
    """The documented `offers --json` form."""
    return {
        "recipe": plan.recipe.name,
        "target": plan.target,
        "simulated": plan.simulated,
        "nodes": plan.nodes,
        "prefer": plan.recipe.resources.prefer,
        "regions": list(question.regions),
        "priced_live": plan.priced_live,
        "candidates": [
            one.as_json() | {"hourly_usd": format(_in_all(one, plan), "f"), "quota": _quota_json(one, plan, question)}
            for one in plan.candidates
        ],
        **explained_json(verdicts),
        "findings": [finding.as_json() for finding in plan.findings],
    }


def explained_json(verdicts: Sequence[CandidateExplanation]) -> dict[str, Any]:
    """Every verdict, and how many each rule kept or threw out."""
    return {
        "considered": [one.as_json() for one in verdicts],
        "rules": [{"rule": group.rule, "kept": group.kept, "count": group.count} for group in grouped(verdicts)],
    }


def _candidates(plan: Plan, question: Question) -> list[str]:
    if not plan.candidates:
        return ["no candidates", ""]
    rows = [
        (
            str(place),
            one.instance_type,
            one.zone,
            one.market,
            shown(one.node_hourly_usd),
            shown(_in_all(one, plan)),
            one.priced_on.isoformat(),
            _quota(one, plan, question),
        )
        for place, one in enumerate(plan.candidates, start=1)
    ]
    return [*columns([_HEADINGS, *rows], right=_RIGHT, indent="  "), "", _order(plan), ""]


def _order(plan: Plan) -> str:
    return f"tried in this order: {PLACES[plan.recipe.resources.prefer]}"


def _in_all(one: Candidate, plan: Plan) -> Decimal:
    return hourly_usd(one.costs(plan.nodes))


def _quota(one: Candidate, plan: Plan, question: Question) -> str:
    """`192 of 384 free (L-417A185B)`."""
    told = _quota_json(one, plan, question)
    if told is None:
        return "none: reserved"
    if told["free_vcpus"] is None:
        return f"{told['needed_vcpus']} needed, room unknown"
    return f"{told['needed_vcpus']} needed, {told['free_vcpus']} of {told['limit_vcpus']} free"


def _quota_json(one: Candidate, plan: Plan, question: Question) -> dict[str, Any] | None:
    """None for what is reserved, which counts against no quota of running instances."""
    if is_reserved(one.market):
        return None
    quota = quota_of(one.instance_type, one.market)
    room = question.quotes.quotas.get((one.region, quota.key))
    return {
        "code": quota.code or None,
        "name": quota.name,
        "needed_vcpus": plan.nodes * question.catalog.types[one.instance_type].vcpus,
        "limit_vcpus": None if room is None else room.limit_vcpus,
        "free_vcpus": None if room is None else room.free_vcpus,
    }
