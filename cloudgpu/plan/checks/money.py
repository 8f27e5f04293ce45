"""What it may cost at most, and how old the prices are."""

from collections.abc import Iterator
from datetime import timedelta

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.money import expiry_that_fits, sum_up, without
from cloudgpu.recipe.units import DurationS
from cloudgpu.text import command

PRICES_STALE = timedelta(days=30)
SHORTEST_RUN_S = 600
"""Below ten minutes nodes end before they have started work."""


@check("budget", "error", "The worst case, expiry times price, never exceeds what the recipe allows.")
def within_budget(case: Case) -> Iterator[Found]:
    """A worst case above the cap, or no cap at all."""
    plan, cap = case.plan, case.question.recipe.budget.max_usd
    worst = plan.worst_case_usd
    if worst is None:
        return
    if cap is None:
        yield Found(f"budget.max_usd is not set; the worst case is {worst} USD{without(plan)}", severity="note")
    elif worst > cap:
        fitting = expiry_that_fits(plan, cap)
        fixes = [f"budget.max_usd={worst}", *([f"budget.expiry={fitting}"] if fitting else [])]
        fix = ", or ".join(command("--set", one) for one in fixes)
        yield Found(
            f"the worst case is {worst} USD ({sum_up(plan)}{without(plan)}), above budget.max_usd {cap} USD", fix
        )


@check("price-age", "warning", "A price that is a month old may no longer be what AWS takes.")
def prices_fresh(case: Case) -> Iterator[Found]:
    """Prices read more than thirty days ago."""
    question = case.question
    stale = [one.priced_on for one in case.field.candidates if question.today - one.priced_on > PRICES_STALE]
    if stale:
        age = (question.today - min(stale)).days
        message = f"prices were read on {min(stale).isoformat()}, {age} days ago"
        yield Found(message, severity="note" if question.rehearsed else "warning")


@check("expiry", "warning", "Nodes that end before they have started work cost money for nothing.")
def expiry_long_enough(case: Case) -> Iterator[Found]:
    """An expiry below ten minutes, for nodes that take some to boot."""
    asked = case.question.recipe.budget.expiry
    if asked < SHORTEST_RUN_S and not case.question.rehearsed:
        message = f"the expiry is {asked}, and nodes take minutes until they can work"
        yield Found(message, command("--set", f"budget.expiry={DurationS(SHORTEST_RUN_S)}"))


@check("expected-time", "warning", "A run that cannot be done by its expiry is cut off, with what it has cost.")
def expiry_reaches(case: Case) -> Iterator[Found]:
    """Work that takes longer than the expiry even at the reference's rate."""
    expected, expiry_s = case.plan.expected, case.plan.expiry_s
    if expected is not None and expected.seconds > expiry_s:
        minutes = DurationS(-(-expected.seconds // 60) * 60)
        message = f"the work takes {minutes} at the reference rate, and the nodes end after {DurationS(expiry_s)}"
        yield Found(message, command("--set", f"budget.expiry={minutes}"))
