"""Turn a resolved recipe and the state of the cloud into a plan. The functions are pure."""

from dataclasses import replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cloudgpu.plan import host_sets
from cloudgpu.plan.candidate_list import CandidateList, find_candidates
from cloudgpu.plan.capacity import usable_seconds
from cloudgpu.plan.checks import (
    account_and_market,
    data_and_storage,
    environment,
    hardware_and_network,
    hosts,
    launch,
    results,
)
from cloudgpu.plan.checks.check import Check, CheckContext
from cloudgpu.plan.costs import total_usd
from cloudgpu.plan.node_software import NodeSoftware, software_for
from cloudgpu.plan.plan import Expected, Finding, Plan, Severity
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.plan.suggestions import with_remedies
from cloudgpu.recipe.schema import Recipe, digest

_CHECK_MODULES: Final = (
    hardware_and_network,
    hosts,
    account_and_market,
    environment,
    data_and_storage,
    launch,
    results,
)
CHECKS: Final[tuple[Check, ...]] = tuple(
    value for module in _CHECK_MODULES for value in vars(module).values() if isinstance(value, Check)
)
"""Every check, in the order in which findings of equal severity are shown: that of the modules and their text."""
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "unknown", "note")
"""All severities, most severe first. `unknown` means that the check could not run: it neither passed nor failed."""


def build_plan(inputs: PlannerInput) -> Plan:
    """Plan a resolved recipe, with remedies if the plan has errors. Problems are reported as findings, never raised."""
    return with_remedies(plan_with_findings(inputs), inputs, plan_with_findings)


def plan_with_findings(inputs: PlannerInput) -> Plan:
    """Return the plan with its findings but without remedies."""
    recipe = inputs.recipe
    candidate_list = find_candidates(inputs) if inputs.hosts is None else host_sets.find_host_sets(inputs)
    plan = Plan(
        target=inputs.target,
        recipe=recipe,
        recipe_digest=digest(recipe),
        nodes=recipe.resources.nodes,
        ranks_per_node=_ranks_per_node(inputs, candidate_list),
        candidates=candidate_list.candidates,
        findings=(),
        expiry_s=_expiry_s(inputs),
        priced_live=_priced_live(inputs, candidate_list),
        starts_at=_starts_at(inputs),
        expected=_expected(recipe, candidate_list),
        uses=_uses(inputs, candidate_list),
        uploads=inputs.quotes.lookups.uploads,
    )
    return replace(plan, findings=findings(inputs, candidate_list, plan))


def findings(inputs: PlannerInput, candidate_list: CandidateList, plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of every check that applies to the target, without duplicates, errors first."""
    context = CheckContext(inputs, candidate_list, plan)
    checks = [check for check in CHECKS if check.on_hosts or inputs.hosts is None]
    unique = dict.fromkeys(finding for check in checks for finding in check.findings(context))
    return tuple(sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity)))


def _expiry_s(inputs: PlannerInput) -> int:
    """Return the recipe's expiry in seconds, shortened if a Capacity Block ends earlier."""
    requested_s, reservation, now = (
        int(inputs.recipe.budget.expiry),
        inputs.quotes.reservation,
        inputs.quotes.asked_at,
    )
    return requested_s if reservation is None or now is None else usable_seconds(reservation, now, requested_s)


def _starts_at(inputs: PlannerInput) -> datetime | None:
    """Return the start of the reservation; None if it has started or there is no reservation."""
    reservation, now = inputs.quotes.reservation, inputs.quotes.asked_at
    if reservation is None or now is None or reservation.starts_at is None or reservation.starts_at <= now:
        return None
    return reservation.starts_at


def _ranks_per_node(inputs: PlannerInput, candidate_list: CandidateList) -> int:
    """Return the recipe's ranks per node; for `gpus`, the GPU count of the first candidate or first requested type."""
    ranks = inputs.recipe.launch.ranks
    if ranks != "gpus":
        return ranks
    if candidate_list.candidates:
        return candidate_list.candidates[0].gpus_per_node
    return inputs.types[0].gpus if inputs.types else 1


def _priced_live(inputs: PlannerInput, candidate_list: CandidateList) -> bool:
    """Return True if every candidate's price was just read from the cloud."""
    prices = inputs.quotes.prices
    return bool(candidate_list.candidates) and all(candidate.key in prices for candidate in candidate_list.candidates)


def _expected(recipe: Recipe, candidate_list: CandidateList) -> Expected | None:
    """Estimate time and cost at the reference rate on the first candidate; None without a reference or a candidate."""
    work = recipe.work
    metric = recipe.metrics.get(work.metric) if work is not None else None
    reference = metric.reference if metric is not None else None
    if work is None or metric is None or reference is None or not candidate_list.candidates:
        return None
    rate = Decimal(str(reference.value)).normalize()
    seconds = int((work.amount / rate).to_integral_value(ROUND_CEILING))
    usd = total_usd(candidate_list.candidates[0].costs(recipe.resources.nodes), seconds)
    return Expected(work.metric, work.amount, rate, metric.unit, reference.on, seconds, usd)


def _uses(inputs: PlannerInput, candidate_list: CandidateList) -> tuple[NodeSoftware, ...]:
    """Return the software of each instance type, with the machine image of the type's first candidate."""
    if inputs.hosts is not None:
        return ()
    first = {candidate.instance_type: candidate for candidate in reversed(candidate_list.candidates)}
    names = dict.fromkeys(candidate.instance_type for candidate in candidate_list.candidates)
    chosen = [first[name] for name in names]
    uses = tuple(
        software_for(
            inputs.recipe,
            candidate.instance_type,
            inputs.catalog.gpus[candidate.gpu],
            candidate.image,
            candidate.image_parameter,
        )
        for candidate in chosen
    )
    # The rehearsal does not simulate the network, so network settings are omitted.
    return tuple(replace(use, environment=()) for use in uses) if inputs.rehearsed else uses
