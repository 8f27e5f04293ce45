"""Check the worst-case cost, the expiry and the age of the prices."""

from collections.abc import Iterator
from datetime import timedelta

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.money import breakdown, longest_expiry_within, unpriced_suffix
from cloudgpu.recipe.units import DurationS
from cloudgpu.text import command, plural

PRICES_STALE = timedelta(days=30)
SHORTEST_RUN_S = 600
"""Shortest useful expiry: with less than ten minutes, nodes terminate before they start work."""


@check("budget", "error", "The worst-case cost (price times expiry) must not exceed the recipe's budget.")
def within_budget(case: CheckInput) -> Iterator[Issue]:
    """Report a worst-case cost above the budget, or a missing budget."""
    plan, cap = case.plan, case.question.recipe.budget.max_usd
    worst = plan.worst_case_usd
    if worst is None:
        return
    if cap is None:
        yield Issue(f"budget.max_usd is not set; the worst case is {worst} USD{unpriced_suffix(plan)}", severity="note")
    elif worst > cap:
        longest = longest_expiry_within(plan, cap)
        assignments = [f"budget.max_usd={worst}", *([f"budget.expiry={longest}"] if longest else [])]
        fix = ", or ".join(command("--set", assignment) for assignment in assignments)
        yield Issue(
            f"the worst case is {worst} USD ({breakdown(plan)}{unpriced_suffix(plan)}), above budget.max_usd {cap} USD",
            fix,
        )


@check("price-age", "warning", "AWS may have changed a price that was read a month ago.")
def prices_fresh(case: CheckInput) -> Iterator[Issue]:
    """Report prices that were read more than 30 days ago."""
    question = case.question
    read_on = [candidate.priced_on for candidate in case.field.candidates]
    stale = [day for day in read_on if question.today - day > PRICES_STALE]
    if stale:
        age = (question.today - min(stale)).days
        message = f"the oldest price was read on {min(stale).isoformat()}, {plural(age, 'day')} ago"
        yield Issue(message, severity="note" if question.rehearsed else "warning")


@check("expiry", "warning", "Nodes that expire before the run starts cost money and do nothing.")
def expiry_long_enough(case: CheckInput) -> Iterator[Issue]:
    """Report an expiry below ten minutes, because nodes need several minutes to boot."""
    expiry = case.question.recipe.budget.expiry
    if expiry < SHORTEST_RUN_S and not case.question.rehearsed:
        message = f"the expiry is {expiry}, but nodes need several minutes to boot"
        yield Issue(message, command("--set", f"budget.expiry={DurationS(SHORTEST_RUN_S)}"))


@check("expected-time", "warning", "A run that cannot finish before the expiry is cut off, and its cost is wasted.")
def expiry_reaches(case: CheckInput) -> Iterator[Issue]:
    """Report work that would not finish before the expiry, even at the reference rate."""
    expected, expiry_s = case.plan.expected, case.plan.expiry_s
    if expected is not None and expected.seconds > expiry_s:
        minutes = DurationS(-(-expected.seconds // 60) * 60)
        message = f"the work takes {minutes} at the reference rate, but the nodes terminate after {DurationS(expiry_s)}"
        yield Issue(message, command("--set", f"budget.expiry={minutes}"))
