"""How the nodes are bought: reserved, spare, or scarce a moment ago."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.checks.money import SHORTEST_RUN_S
from cloudgpu.plan.reservations import told
from cloudgpu.recipe.units import DurationS

_MINUTE_S = 60
_NOTICE_S = 120
"""EC2 tells of an interruption two minutes before, at best."""
_HEADWAY_S = 10
"""Until the notice is seen: agents ask every five seconds."""


@check("cool-down", "note", "Capacity that was refused a moment ago is tried last, and nobody wonders about the order.")
def no_capacity_lately(case: Case) -> Iterator[Found]:
    """A refusal is no verdict: capacity comes back, so such a candidate is tried last and never left out."""
    refused = case.question.quotes.refused
    ages_s = [(one, refused.get((one.instance_type, one.zone, one.market))) for one in case.field.candidates]
    last = ", tried last" if any(age_s is None for _, age_s in ages_s) else ""
    for one, age_s in ages_s:
        if age_s is not None:
            ago = f"{age_s // 60} min" if age_s >= _MINUTE_S else f"{age_s} s"
            yield Found(f"{one.label}: no capacity {ago} ago{last}")


@check(
    "reservation", "error", "What is reserved has a start, an end and a price of its own, which may not fit the run."
)
def reservation_told(case: Case) -> Iterator[Found]:
    """What a reservation costs, when it begins, and what its end takes from the run."""
    question = case.question
    one, now = question.quotes.reservation, question.quotes.asked_at
    if one is None or now is None:
        if question.recipe.resources.reservation and not question.quotes.live:
            message = f"{question.recipe.resources.reservation} was not looked at: its zone, start and end are unknown"
            yield Found(message, "plan without --offline", "warning")
        return
    if not case.field.candidates:
        return
    if case.plan.expiry_s < SHORTEST_RUN_S:
        yield Found(f"{one.id} ends too soon for a run: AWS takes its nodes half an hour before")
    for line in told(one, now, int(question.recipe.budget.expiry)):
        yield Found(line, severity="note")


@check("spot", "warning", "A spot node that is taken away must not take the work with it, and its price moves.")
def spot_is_safe(case: Case) -> Iterator[Found]:
    """Spot without a checkpoint, and a price that was not read today."""
    question = case.question
    if "spot" not in question.markets:
        return
    if question.recipe.checkpoint is None:
        message = "spot nodes can be taken away at two minutes' notice, and the recipe keeps no checkpoint"
        yield Found(message, "--set resources.market=on-demand")
    if any(one.priced_on != question.today for one in case.field.candidates if one.market == "spot"):
        message = "spot prices move; the worst case uses the highest seen, and none can exceed the on-demand price"
        yield Found(message, severity="note" if question.rehearsed else "warning")


@check("grace", "warning", "A checkpoint that is not written before the node goes is none.")
def checkpoint_in_time(case: Case) -> Iterator[Found]:
    """More time for a checkpoint than a spot notice, or the expiry, leaves."""
    checkpoint = case.question.recipe.checkpoint
    if checkpoint is None:
        return
    grace = checkpoint.grace
    if "spot" in case.question.markets and grace > _NOTICE_S - _HEADWAY_S:
        message = f"checkpoint.grace is {grace}, and spot nodes go two minutes after the notice"
        yield Found(message, "--set checkpoint.grace=90s")
    if grace >= case.plan.expiry_s:
        yield Found(f"checkpoint.grace is {grace}, and the nodes end after {DurationS(case.plan.expiry_s)}")


@check("placement", "warning", "Nodes close together come from less capacity, and some of it cannot be used so.")
def placement_possible(case: Case) -> Iterator[Found]:
    """A gang's placement group beside spot or reserved capacity. A Capacity Block needs none and gets none."""
    nodes, markets = case.plan.nodes, case.question.markets
    if nodes == 1 or not case.field.candidates:
        return
    if "reservation" in markets:
        held = case.question.recipe.resources.reservation
        message = f"the {nodes} nodes get a placement group of their own, and {held} was not made in it"
        yield Found(f"{message}: AWS may find that it does not match", "use one node a cluster, or a Capacity Block")
    if "spot" in markets:
        message = f"{nodes} spot nodes close together in one zone: harder to get than one, and one taken stops all"
        yield Found(message, severity="note")
