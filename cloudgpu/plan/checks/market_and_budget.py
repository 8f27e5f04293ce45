"""Check capacity, spot and reservation terms, and that the cost and the expiry fit the budget."""

from collections.abc import Iterator
from datetime import timedelta

from cloudgpu.plan.capacity import reservation_notes
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.plan import breakdown, longest_expiry_within, unpriced_suffix
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.text import command, plural

PRICES_STALE = timedelta(days=30)
SHORTEST_RUN_S = 600
"""Shortest useful expiry: with less than ten minutes, nodes terminate before they start work."""
_MINUTE_S = 60
_NOTICE_S = 120
"""Spot notice, in seconds: EC2 announces an interruption at most two minutes in advance."""
_HEADWAY_S = 10
"""Margin, in seconds, for the polling delay: agents check for the notice every five seconds."""


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


@check("price-age", "warning", "AWS may have changed a price that was read a month ago.", on_hosts=False)
def prices_fresh(case: CheckInput) -> Iterator[Issue]:
    """Report prices that were read more than 30 days ago."""
    question = case.question
    read_on = [candidate.priced_on for candidate in case.field.candidates]
    stale = [day for day in read_on if question.today - day > PRICES_STALE]
    if stale:
        age = (question.today - min(stale)).days
        message = f"the oldest price was read on {min(stale).isoformat()}, {plural(age, 'day')} ago"
        yield Issue(message, severity="note" if question.rehearsed else "warning")


@check("expiry", "warning", "Nodes that expire before the run starts cost money and do nothing.", on_hosts=False)
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


@check(
    "cool-down",
    "note",
    "A candidate that recently had no capacity is less likely to have capacity than the others.",
    on_hosts=False,
)
def no_capacity_lately(case: CheckInput) -> Iterator[Issue]:
    """Report candidates that recently had no capacity. Capacity may return, so they are tried last, not excluded."""
    refused = case.question.quotes.refused
    ages_s = [(candidate, refused.get(candidate.key)) for candidate in case.field.candidates]
    last = ", tried last" if any(age_s is None for _, age_s in ages_s) else ""
    for candidate, age_s in ages_s:
        if age_s is not None:
            ago = f"{age_s // 60} min" if age_s >= _MINUTE_S else f"{age_s} s"
            yield Issue(f"{candidate.label}: no capacity {ago} ago{last}")


@check(
    "reservation",
    "error",
    "A reservation has its own start, end and price, which may not suit the run.",
    on_hosts=False,
)
def reservation_terms(case: CheckInput) -> Iterator[Issue]:
    """Report the cost and start of a reservation, and whether the run is shortened because the reservation ends."""
    question = case.question
    reservation, now = question.quotes.reservation, question.quotes.asked_at
    if reservation is None or now is None:
        if question.recipe.resources.reservation and not question.quotes.live:
            message = f"{question.recipe.resources.reservation} was not checked: its zone, start and end are unknown"
            yield Issue(message, "plan without --offline", "warning")
        return
    if not case.field.candidates:
        return
    if case.plan.expiry_s < min(SHORTEST_RUN_S, int(question.recipe.budget.expiry)):
        yield Issue(f"{reservation.id} ends too soon for a run: AWS terminates its nodes 30 minutes before the end")
    for line in reservation_notes(reservation, now, int(question.recipe.budget.expiry)):
        yield Issue(line, severity="note")


@check("spot", "warning", "A spot interruption must not lose the work, and spot prices change.", on_hosts=False)
def spot_is_safe(case: CheckInput) -> Iterator[Issue]:
    """Report spot capacity without a checkpoint, and spot prices that were not read today."""
    question = case.question
    if "spot" not in question.markets:
        return
    if question.recipe.checkpoint is None:
        message = "spot nodes can be interrupted with two minutes' notice, but the recipe has no checkpoint"
        yield Issue(message, "--set resources.market=on-demand")
    spot = [candidate for candidate in case.field.candidates if candidate.market == "spot"]
    if any(candidate.priced_on != question.today for candidate in spot):
        message = "spot prices change: the worst case uses the highest observed price, or the on-demand price"
        yield Issue(message, severity="note" if question.rehearsed else "warning")


@check("grace", "warning", "A checkpoint that is not complete before the node terminates is lost.")
def checkpoint_in_time(case: CheckInput) -> Iterator[Issue]:
    """Report a grace period that is longer than the spot notice or the expiry allows."""
    checkpoint = case.question.recipe.checkpoint
    if checkpoint is None:
        return
    grace = checkpoint.grace
    if "spot" in case.question.markets and grace > _NOTICE_S - _HEADWAY_S:
        message = f"checkpoint.grace is {grace}, but spot nodes terminate two minutes after the notice"
        yield Issue(message, "--set checkpoint.grace=90s")
    if grace >= case.plan.expiry_s:
        yield Issue(f"checkpoint.grace is {grace}, but the nodes terminate after {DurationS(case.plan.expiry_s)}")


@check("all-or-none", "error", "Nodes of an incomplete cluster cost money but cannot run the recipe.", on_hosts=False)
def gang_launch_possible(case: CheckInput) -> Iterator[Issue]:
    """Report several spot nodes under the pulumi engine.

    Pulumi's AWS provider accepts the spot options `min_target_capacity`, `single_instance_type` and
    `single_availability_zone` but does not send them: see `expandSpotOptionsRequest` in
    internal/service/ec2/ec2_fleet.go of hashicorp/terraform-provider-aws, on which the provider is based.
    """
    question, nodes = case.question, case.plan.nodes
    if question.engine != "pulumi" or nodes == 1 or "spot" not in question.markets:
        return
    message = f"the pulumi engine cannot launch {nodes} spot nodes all or none: the provider sends no minimum for spot"
    direct = "--engine direct"
    fix = f"{direct}, or --set resources.market=on-demand" if question.market == "spot" else direct
    yield Issue(f"{message}, so a partial launch would be billed", fix)


@check(
    "placement",
    "warning",
    "A placement group restricts the available capacity and does not work with every reservation.",
    on_hosts=False,
)
def placement_possible(case: CheckInput) -> Iterator[Issue]:
    """Report a placement group with spot or reserved capacity. Capacity Blocks do not use a placement group."""
    nodes, markets = case.plan.nodes, case.question.markets
    if nodes == 1 or not case.field.candidates:
        return
    if "reservation" in markets:
        reservation = case.question.recipe.resources.reservation
        message = f"the {nodes} nodes use a new placement group, but {reservation} was not created in it"
        yield Issue(f"{message}: AWS may reject the launch", "use one node per cluster, or a Capacity Block")
    if "spot" in markets:
        message = f"{nodes} spot nodes in one placement group are harder to get than one node"
        yield Issue(f"{message}, and an interruption stops them all", severity="note")
