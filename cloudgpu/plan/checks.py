"""Preflight: every way in which a run would fail or surprise, found before anything is spent. Pure."""

from collections.abc import Callable, Iterator
from datetime import timedelta

from cloudgpu.catalog.network_prices import network_prices
from cloudgpu.plan import software
from cloudgpu.plan.candidates import Field
from cloudgpu.plan.money import expiry_that_fits, sum_up
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.question import Question, types_meant
from cloudgpu.plan.reaching import contradiction, explained
from cloudgpu.plan.reservations import told
from cloudgpu.recipe.nearest import nearest, suggestion

PRICES_STALE = timedelta(days=30)
RANKS_ON_ONE_MACHINE = 16
SHORTEST_RUN_S = 600
"""Below ten minutes nodes end before they have started work."""
_MINUTE_S = 60

Check = Callable[[Question, Field, Plan], Iterator[Finding]]


def findings(question: Question, field: Field, plan: Plan) -> tuple[Finding, ...]:
    """What every check finds, errors first, each once."""
    found = dict.fromkeys(finding for check in CHECKS for finding in check(question, field, plan))
    order: list[Severity] = ["error", "warning", "note"]
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _hardware_known(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    catalog = question.catalog
    for wish in question.wishes:
        gpu, _, count = wish.partition(":")
        if "." in wish and wish not in catalog.types:
            fix = nearest(wish, [name for name, kind in catalog.types.items() if not kind.retired])
            hint = f"--set resources.instance_type={fix}" if fix else ""
            yield Finding(
                "instance-type", "error", f"unknown instance type {wish}{suggestion(wish, catalog.types)}", hint
            )
        elif "." not in wish and gpu not in catalog.gpus:
            near = nearest(gpu, catalog.gpus)
            hint = f"--set resources.gpu={near}:{count}" if near else f"known GPUs: {', '.join(catalog.gpus)}"
            yield Finding("gpu", "error", f"unknown GPU {gpu}{suggestion(gpu, catalog.gpus)}", hint)
        elif not types_meant(wish, catalog):
            counts = sorted({kind.gpus for kind in catalog.types.values() if kind.gpu == gpu and not kind.retired})
            sizes = ", ".join(f"{gpu}:{size}" for size in counts)
            message = f"no instance type has {count} {gpu}; there are {sizes or 'none'}"
            yield Finding("gpu", "error", message, f"--set resources.gpu={gpu}:{counts[-1]}" if counts else "")


def _regions_known(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    regions = question.catalog.regions
    for region in question.regions:
        if region not in regions:
            near = nearest(region, regions)
            fix = f"--set resources.regions={near}" if near else ""
            yield Finding("region", "error", f"unknown region {region}{suggestion(region, regions)}", fix)


def _left_out(_question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    severity: Severity = "warning" if field.candidates else "error"
    for one in field.left_out:
        prefix = "left out: " if field.candidates else ""
        yield Finding(one.check, severity, f"{prefix}{one.message}", one.fix)


def _nothing_left(question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    """An error even if no other check can say why, so that a plan without candidates is never applied."""
    if question.types and question.known_regions == question.regions and not field.candidates and not field.left_out:
        message = f"no zone of {', '.join(question.regions)} can be used for this recipe"
        yield Finding("candidates", "error", message)


def _no_capacity_lately(question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    """A refusal is no verdict: capacity comes back, so such a candidate is tried last and never left out."""
    refused = question.quotes.refused
    ages_s = [(one, refused.get((one.instance_type, one.zone, one.market))) for one in field.candidates]
    last = ", tried last" if any(age_s is None for _, age_s in ages_s) else ""
    for one, age_s in ages_s:
        if age_s is not None:
            ago = f"{age_s // 60} min" if age_s >= _MINUTE_S else f"{age_s} s"
            yield Finding("cool-down", "note", f"{one.label}: no capacity {ago} ago{last}")


def _reachable(question: Question, field: Field, plan: Plan) -> Iterator[Finding]:
    """Which address the nodes get, where EC2 gives none by itself, and what that costs."""
    wrong = contradiction(question.network)
    if wrong:
        yield Finding("address", "error", wrong, "change one of the settings: `cloudgpu config`")
        return
    prices = network_prices()
    ways = dict.fromkeys((one.instance_type, one.public_address) for one in field.candidates)
    for name, way in ways:
        for line in explained(way, plan.nodes, plan.expiry_s, prices):
            yield Finding("address", "note", f"{name}: {line}")


def _reservation_told(question: Question, field: Field, plan: Plan) -> Iterator[Finding]:
    """What a reservation costs, when it begins, and what its end takes from the run."""
    one, now = question.quotes.reservation, question.quotes.asked_at
    if one is None or now is None:
        if question.recipe.resources.reservation and not question.quotes.live:
            message = f"{question.recipe.resources.reservation} was not looked at: its zone, start and end are unknown"
            yield Finding("reservation", "warning", message, "plan without --offline")
        return
    if not field.candidates:
        return
    if plan.expiry_s < SHORTEST_RUN_S:
        yield Finding(
            "reservation", "error", f"{one.id} ends too soon for a run: AWS takes its nodes half an hour before"
        )
    for line in told(one, now, int(question.recipe.budget.expiry)):
        yield Finding("reservation", "note", line)


def _within_budget(question: Question, _field: Field, plan: Plan) -> Iterator[Finding]:
    cap, worst = question.recipe.budget.max_usd, plan.worst_case_usd
    if worst is None or plan.hourly_usd is None:
        return
    if cap is None:
        yield Finding("budget", "note", f"budget.max_usd is not set; the worst case is {worst} USD")
    elif worst > cap:
        fitting = expiry_that_fits(plan.hourly_usd, cap)
        fix = f"--set budget.max_usd={worst}" + (f", or --set budget.expiry={fitting}" if fitting else "")
        message = f"the worst case is {worst} USD ({sum_up(plan)}), above budget.max_usd {cap} USD"
        yield Finding("budget", "error", message, fix)


def _prices_fresh(question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    stale = [one.priced_on for one in field.candidates if question.today - one.priced_on > PRICES_STALE]
    if stale:
        age = (question.today - min(stale)).days
        severity: Severity = "note" if question.rehearsed else "warning"
        yield Finding("price-age", severity, f"prices were read on {min(stale).isoformat()}, {age} days ago")


def _spot_is_safe(question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    if question.market != "spot":
        return
    if question.recipe.checkpoint is None:
        message = "spot nodes can be taken away at two minutes' notice, and the recipe keeps no checkpoint"
        yield Finding("spot", "warning", message, "--set resources.market=on-demand")
    if any(one.priced_on != question.today for one in field.candidates):
        message = "spot prices move; the worst case uses the highest seen, and none can exceed the on-demand price"
        yield Finding("spot", "note" if question.rehearsed else "warning", message)


def _container_runs(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    container = question.recipe.environment.container
    if container is None:
        return
    if question.rehearsed:
        message = f"not run: needs {container.image}"
        yield Finding("container", "warning", message, "give the recipe a rehearsal section with another environment")
    else:
        message = f"{container.image}: this version cannot run containers yet"
        yield Finding("container", "error", message, "use environment.python")


def _data_can_be_staged(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    for data in question.recipe.data:
        if data.mode == "mount":
            message = f"dataset {data.name}: this version cannot mount data yet"
            yield Finding("data", "error", message, f"write mode: copy for {data.name}")


def _ranks_fit(question: Question, field: Field, plan: Plan) -> Iterator[Finding]:
    ranks = question.recipe.launch.ranks_per_node
    if question.rehearsed:
        total = plan.nodes * plan.ranks_per_node
        if total > RANKS_ON_ONE_MACHINE:
            message = f"all {total} ranks run on this machine"
            yield Finding("ranks", "warning", message, "--set rehearsal.ranks_per_node=1")
        return
    sizes = {one.instance_type: one.gpus_per_node for one in field.candidates}
    for name, gpus in sizes.items():
        if ranks != "gpus" and ranks > gpus:
            message = f"{ranks} ranks on a node, but {name} has {gpus} GPU{'s' if gpus > 1 else ''}"
            yield Finding("ranks", "error", message, "--set launch.ranks_per_node=gpus")
    if ranks == "gpus" and len(set(sizes.values())) > 1:
        listed = ", ".join(f"{gpus} on {name}" for name, gpus in sizes.items())
        yield Finding("ranks", "warning", f"the number of ranks a node depends on what can be had: {listed}")


def _torch_fits(question: Question, field: Field, _plan: Plan) -> Iterator[Finding]:
    python = question.recipe.environment.python
    if python is None:
        return
    severity: Severity = "note" if question.rehearsed else "warning"
    for name in dict.fromkeys(one.gpu for one in field.candidates):
        gpu = question.catalog.gpus[name]
        misfit = software.torch_misfit(python.requirements, gpu)
        if misfit:
            yield Finding("torch", severity, misfit, f"require torch>=2.6,<{gpu.first_torch_without}")


def _secrets_asked(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    secrets = question.recipe.environment.secrets
    if secrets:
        yield Finding("secrets", "note", f"taken from your environment and never stored: {', '.join(secrets)}")


def _nothing_silently_ignored(question: Question, _field: Field, _plan: Plan) -> Iterator[Finding]:
    """A field that this version does not carry out is said so; a silently ignored one costs money."""
    recipe = question.recipe
    if recipe.checkpoint and recipe.checkpoint.to is not None:
        message = "checkpoint.to: this version does not copy checkpoints yet"
        yield Finding("checkpoint", "warning", message, f"add {recipe.checkpoint.path}/ to outputs to bring them back")
    if recipe.budget.idle is not None:
        message = "budget.idle: this version does not end idle clusters yet; the expiry does"
        yield Finding("idle", "warning", message)


CHECKS: tuple[Check, ...] = (
    _hardware_known,
    _regions_known,
    _left_out,
    _nothing_left,
    _no_capacity_lately,
    _reachable,
    _reservation_told,
    _within_budget,
    _container_runs,
    _data_can_be_staged,
    _ranks_fit,
    _torch_fits,
    _spot_is_safe,
    _prices_fresh,
    _secrets_asked,
    _nothing_silently_ignored,
)
