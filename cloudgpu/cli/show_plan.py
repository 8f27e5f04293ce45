"""A plan as the lines that a person reads before saying yes."""

from collections.abc import Iterator

from cloudgpu.cli.table import columns
from cloudgpu.plan.money import sum_up
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.recipe.units import DurationS

_HEADINGS = ("try", "type", "zone", "market", "EFA", "USD/h a node", "priced on")
_RIGHT = frozenset({0, 4, 5})
"""Columns of figures."""


def plan_lines(plan: Plan, cluster: str) -> list[str]:
    """What would be done, on what, for how much, and every finding with its fix; plain text.

    `cluster` is empty for one that will be named after its run.
    """
    return [*_summary(plan, cluster), "", *_candidates(plan), *_worst_case(plan), *_findings(plan)]


def _summary(plan: Plan, cluster: str) -> Iterator[str]:
    simulated = "  [simulated]" if plan.simulated else ""
    yield f"{plan.recipe.name} on {_hardware(plan)}{simulated}"
    ranks = plan.nodes * plan.ranks_per_node
    a_node = "" if plan.nodes == 1 else f" ({plan.ranks_per_node} a node)"
    where = f"cluster {cluster}" if cluster else "a cluster of its own"
    yield f"{where}: {ranks} rank{'s' if ranks > 1 else ''}{a_node}, ends itself after {_expiry(plan)}"


def _hardware(plan: Plan) -> str:
    """`2 x p3dn.24xlarge (8 x V100 32 GiB each)`."""
    if not plan.candidates:
        return "nothing that can be had"
    first = plan.candidates[0]
    others = len({candidate.instance_type for candidate in plan.candidates}) - 1
    also = f", or {others} other type{'s' if others > 1 else ''}" if others else ""
    gpus = f"{first.gpus_per_node} x {first.gpu} {first.gpu_memory_gib} GiB"
    each = " each" if plan.nodes > 1 else ""
    return f"{plan.nodes} x {first.instance_type} ({gpus}{each}){also}"


def _candidates(plan: Plan) -> list[str]:
    if not plan.candidates:
        return ["no candidates", ""]
    rows = [_row(place, candidate) for place, candidate in enumerate(plan.candidates, start=1)]
    return [*columns([_HEADINGS, *rows], right=_RIGHT, indent="  "), ""]


def _row(place: int, candidate: Candidate) -> tuple[str, ...]:
    return (
        str(place),
        candidate.instance_type,
        candidate.zone,
        candidate.market,
        str(candidate.efa_interfaces or "-"),
        f"{candidate.node_hourly_usd:.3f}",
        candidate.priced_on.isoformat(),
    )


def _worst_case(plan: Plan) -> list[str]:
    if plan.worst_case_usd is None:
        return []
    spelled = f"{plan.worst_case_usd} USD = {sum_up(plan)}"
    if plan.simulated:
        return [f"worst case on AWS: {spelled} (simulated: nothing is charged)"]
    return [f"worst case: {spelled}"]


def _findings(plan: Plan) -> Iterator[str]:
    for finding in plan.findings:
        yield f"{finding.severity}: {finding.message} [{finding.check}]"
        if finding.fix:
            yield f"    fix: {finding.fix}"


def _expiry(plan: Plan) -> str:
    return str(DurationS(plan.expiry_s))
