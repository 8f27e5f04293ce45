"""A plan as text, for a new or a running cluster, for `plan` and before confirmation prompts."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.app.planning.local_files import UploadListing
from cloudgpu.backends.billing.costs import cluster_hourly_usd, cost_items
from cloudgpu.cli.terminal.number_format import duration, format_time, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import CostItem, total_usd
from cloudgpu.plan.host_sets import HostSet
from cloudgpu.plan.named_resources import Upload
from cloudgpu.plan.node_software import NodeSoftware
from cloudgpu.plan.plan import Expected, Plan, format_cents, format_hourly_rate, unpriced_suffix
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.recipe.launch_rules import endpoints
from cloudgpu.recipe.launch_sections import Endpoint, Service
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.text import plural, size_text

_HOST_COLUMNS = (
    Column("try", right=True),
    Column("hosts", narrow="wrap"),
    Column("pool", priority=1),
    Column("GPUs of each"),
    Column("USD/h", right=True),
)
_CANDIDATES = (
    Column("try", right=True),
    Column("type"),
    Column("zone"),
    Column("market", priority=1),
    Column("EFA", right=True, priority=2),
    Column("USD/h per node", right=True),
    Column("priced on", priority=3, narrow="hide"),
)
_UNKNOWN = "unknown"
_OFFERS = 3
_WARNINGS = 3
"""Warnings in a summary."""
_STAYS = {"expiry": "it runs until the cluster expires", "command": "it stops when the command exits"}


def plan_lines(plan: Plan, cluster: str, width: int | None = None) -> list[str]:
    """Return the plan, its hardware and cost, and every finding with its fix, as plain text.

    Args:
        plan: The plan.
        cluster: Name of the cluster; empty if the cluster will be named after its run.
        width: Width of the terminal in columns; None for a pipe or a file.
    """
    lines = [
        *_summary(plan, cluster),
        "",
        *_candidates(plan, width),
        *(line for use in plan.uses for line in _used(use)),
        *_costs(plan, width),
        *_findings(plan),
    ]
    return wrap_lines(lines, width)


def plan_summary(plan: Plan, cluster: str, full: str, width: int | None = None) -> list[str]:
    """Return the plan in a few lines, with its warnings, for a prompt. `full` is the command that shows everything.

    Like the uploads, the variables of the caller's environment that a run gets are always named.
    """
    sent = [finding for finding in plan.findings if finding.check == "secrets"]
    warnings = [finding for finding in plan.findings if finding.severity == "warning"]
    more = len(warnings) - _WARNINGS
    notes = len(plan.findings) - len(warnings) - len(sent)
    known = plural(notes, "note") + ", " if notes else ""
    lines = [
        *_summary(plan, cluster),
        *_offers(plan),
        *_worst_case(plan),
        *(f"warning: {finding.message} [{finding.check}]" for finding in warnings[:_WARNINGS]),
        *([f"{plural(more, 'more warning')}"] if more > 0 else []),
        *(f"note: {finding.message} [{finding.check}]" for finding in sent),
        f"{known}all offers, prices and software: {full}",
    ]
    return wrap_lines(lines, width)


def _offers(plan: Plan) -> Iterator[str]:
    """Yield the first offers in the order in which they are tried, and the range of their prices."""
    offers = [candidate for candidate in plan.candidates if not isinstance(candidate, HostSet)]
    if not offers:
        return
    several_types = len({offer.instance_type for offer in offers}) > 1
    names = [offer.label if several_types else f"{offer.zone} {offer.market}" for offer in offers[:_OFFERS]]
    more = [f"{len(offers) - _OFFERS} more"] if len(offers) > _OFFERS else []
    prices = sorted({f"{offer.node_hourly_usd:.3f}" for offer in offers}, key=float)
    price = prices[0] if len(prices) == 1 else f"{prices[0]} to {prices[-1]}"
    yield f"{'tries' if len(offers) > 1 else 'in'} {', then '.join([*names, *more])}: {price} USD/h per node"


def _summary(plan: Plan, cluster: str) -> Iterator[str]:
    simulated = "  [simulated]" if plan.simulated else ""
    yield f"{plan.recipe.name} on {_hardware(plan)}{simulated}"
    stanza = plan.recipe.rehearsal
    fewer = plan.simulated and stanza is not None and stanza.ranks_per_node is not None
    share = f"{plan.ranks_per_node} per node" if plan.ranks > 1 else "on the head node"
    notes = [*([share] if plan.nodes > 1 else []), *(["in rehearsals"] if fewer else [])]
    a_node = f" ({' '.join(notes)})" if notes else ""
    where = f"cluster {cluster}" if cluster else "a new cluster"
    yield f"{where}: {plural(plan.ranks, 'rank')}{a_node}, expires after {_expiry(plan)}"
    yield from service_lines(plan.recipe)
    yield from _uploads(plan)


def _uploads(plan: Plan) -> Iterator[str]:
    """Yield what a run uploads from this machine; nothing if it was not checked or there is nothing."""
    uploads = [
        f"{_place(upload)} ({plural(upload.files, 'file')}, {size_text(upload.size_bytes)})" for upload in plan.uploads
    ]
    if uploads:
        yield f"uploads to every node: {', '.join(uploads)}"


def _place(upload: Upload) -> str:
    return upload.what if upload.path == "." else f"{upload.what} {upload.path}"


def upload_lines(listings: Sequence[UploadListing]) -> Iterator[str]:
    """Yield every file that a run uploads, and everything that is left out with the reason."""
    for found in listings:
        yield from ("", f"{_place(found.upload)}: {plural(found.upload.files, 'file')} to upload")
        yield from (f"    {name}" for name in (*found.listing.files, *found.listing.folders))
        if found.listing.ignored:
            yield "  left out by ignore files:"
            yield from (f"    {entry.path}  [{entry.rule}]" for entry in found.listing.ignored)
        if found.listing.skipped:
            yield "  not sent:"
            yield from (f"    {entry.path}: {entry.reason}" for entry in found.listing.skipped)


def upload_json(listings: Sequence[UploadListing]) -> dict[str, Any]:
    """Return the field `files` of `plan --files --json`."""
    return {
        "files": [
            {
                "what": found.upload.what,
                "path": found.upload.path,
                "files": list(found.listing.files),
                "empty_directories": list(found.listing.folders),
                "ignored": [vars(entry) for entry in found.listing.ignored],
                "not_sent": [vars(entry) for entry in found.listing.skipped],
            }
            for found in listings
        ]
    }


def _hardware(plan: Plan) -> str:
    """Format the hardware as `2 x p3dn.24xlarge (8 x V100 32 GiB each)`."""
    if not plan.candidates:
        return "no available hardware"
    first = plan.candidates[0]
    if isinstance(first, HostSet):
        return host_set_text(first)
    others = len({candidate.instance_type for candidate in plan.candidates}) - 1
    also = f", or {plural(others, 'other type')}" if others else ""
    gpus = f"{first.gpus_per_node} x {first.gpu} {first.gpu_memory_gib.normalize():f} GiB"
    each = " each" if plan.nodes > 1 else ""
    return f"{plan.nodes} x {first.instance_type} ({gpus}{each}){also}"


def _candidates(plan: Plan, width: int | None) -> list[str]:
    if not plan.candidates:
        return ["no candidates", ""]
    sets = [candidate for candidate in plan.candidates if isinstance(candidate, HostSet)]
    if sets:
        return [*host_lines(sets, width), ""]
    rows = [_row(place, candidate) for place, candidate in enumerate(plan.candidates, start=1)]
    return [*Table(_CANDIDATES, rows, "  ").lines(width), ""]


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


def _used(use: NodeSoftware) -> Iterator[str]:
    """Yield the software on the nodes of one type."""
    driver = f"{use.driver} ({use.driver_from})" if use.driver else "unknown (part of the image)"
    yield f"{use.instance_type}: driver {driver}, {_cuda(use)}"
    yield f"    image {use.image}"
    if use.container:
        yield f"    container {use.container}"
    for variable in use.environment:
        yield f"    set for ranks: {variable.name}={variable.value} ({variable.why})"


def _cuda(use: NodeSoftware) -> str:
    if use.cuda:
        return f"CUDA {use.cuda} (container)"
    return "CUDA unknown (container)" if use.container else "CUDA from the Python packages"


def _costs(plan: Plan, width: int | None) -> Iterator[str]:
    """Yield the cost items and their sum; nothing if there are no candidates."""
    if plan.worst_case_usd is None:
        return
    expiry = _expiry(plan)
    rows = [_cost(item, plan.expiry_s) for item in plan.costs if item.per != "month"]
    yield ""
    totals = Column("USD/h", right=True), Column(f"USD in {expiry}", right=True)
    columns = (Column("at most", narrow="wrap"), *totals, Column("priced on", priority=1, narrow="hide"))
    yield from Table(columns, rows, "  ").lines(width)
    yield ""
    yield from _worst_case(plan)
    if plan.expected is not None:
        yield _expected(plan.expected)
    for item in plan.costs:
        if item.per == "month":
            monthly = "an unknown price" if item.usd is None else f"{format_cents(item.usd)} USD a month"
            yield f"kept when the cluster is deleted: {item.label} at {monthly}"


def _worst_case(plan: Plan) -> Iterator[str]:
    if plan.worst_case_usd is None:
        return
    spelled = f"{plan.worst_case_usd} USD until the cluster expires after {_expiry(plan)}{unpriced_suffix(plan)}"
    if plan.simulated:
        yield f"worst case on AWS: {spelled} (simulated: nothing is charged)"
    else:
        yield f"worst case: {spelled}"


def _cost(item: CostItem, seconds: int) -> tuple[str, ...]:
    total = item.until_usd(seconds)
    hourly = "-" if item.per != "hour" else _UNKNOWN if item.usd is None else format_hourly_rate(item.usd)
    total_text = _UNKNOWN if total is None else format_cents(total)
    return item.label, hourly, total_text, "" if item.priced_on is None else item.priced_on.isoformat()


def _expected(expected: Expected) -> str:
    amount = f"{expected.amount:,f} {expected.unit.removesuffix('/s')} at {expected.rate:,f} {expected.unit}"
    return f"expected: {expected.usd} USD for {duration(expected.seconds)}: {amount}, as measured on {expected.on}"


def _findings(plan: Plan) -> Iterator[str]:
    together = plan.remedies if len(plan.errors) > 1 else ()
    for finding in plan.findings:
        yield f"{finding.severity}: {finding.message} [{finding.check}]"
        # Changes that fix all errors together are shown once, after the findings.
        cures = [cure for cure in finding.all_fixes if cure not in map(str, together)]
        for place, cure in enumerate(cures):
            yield f"    {'fix: ' if place == 0 else 'or:  '}{cure}"
    if together:
        yield from remedy_lines(plan)


def remedy_lines(plan: Plan) -> Iterator[str]:
    """Yield the alternative changes that each fix all errors of a plan; nothing if none were found."""
    for place, remedy in enumerate(plan.remedies):
        yield f"{'to fix all errors:' if place == 0 else '               or:'} {remedy}"


def _expiry(plan: Plan) -> str:
    return str(DurationS(plan.expiry_s))


def service_lines(recipe: Recipe) -> Iterator[str]:
    """Yield one line per service or side service: port, readiness check and, for services, lifetime."""
    for _, name, endpoint in endpoints(recipe):
        if isinstance(endpoint, Service):
            yield f"serves port {endpoint.port} on the head node, {_ready(endpoint)}; {_STAYS[endpoint.stays]}"
        else:
            yield f"side service {name}: port {endpoint.port} on the head node, {_ready(endpoint)}"


def _ready(endpoint: Endpoint) -> str:
    ready = endpoint.ready
    if ready.http is None:
        return f"ready when it accepts connections, within {ready.within}"
    status = ready.status or "a status below 400"
    return f"ready when GET {ready.http} returns {status}, within {ready.within}"


def running_plan_lines(plan: Plan, record: ClusterRecord, now: datetime, width: int | None = None) -> list[str]:
    """Return one line with the cluster's real expiry and cost, and the warnings of the plan.

    The plan's offers and prices are left out, because nothing will be launched.
    """
    return wrap_lines([_cluster(plan, record, now), *service_lines(plan.recipe), *_warnings(plan)], width)


def _cluster(plan: Plan, record: ClusterRecord, now: datetime) -> str:
    placement, expiry = record.placement, record.lifecycle.expires_at
    seconds = max(0, int((expiry - now).total_seconds()))
    simulated = "  [simulated]" if plan.simulated else ""
    return (
        f"{plan.recipe.name} on running cluster {record.name} ({placement.nodes} x {placement.instance_type}), expires "
        f"{format_time(expiry)}, {relative_time(expiry, now)}: {format_hourly_rate(cluster_hourly_usd(record))} USD/h, "
        f"at most {format_cents(total_usd(cost_items(record), seconds))} USD until then{simulated}"
    )


def _warnings(plan: Plan) -> Iterator[str]:
    yield from (
        f"warning: {finding.message} [{finding.check}]" for finding in plan.findings if finding.severity == "warning"
    )


def host_set_text(host_set: HostSet) -> str:
    """Format a set of hosts as `2 hosts with 8 x V100 32 GiB each`."""
    memory = f" {host_set.gpu_memory_gib.normalize():f} GiB" if host_set.gpu_memory_gib else ""
    count = f"{len(host_set.hosts)} hosts" if len(host_set.hosts) > 1 else f"host {host_set.hosts[0]}"
    each = " each" if len(host_set.hosts) > 1 else ""
    return f"{count} with {host_set.gpus_per_node} x {host_set.gpu}{memory}{each}"


def host_lines(sets: Sequence[HostSet], width: int | None = None) -> list[str]:
    """Return the sets of hosts in a plan, in the order in which they will be tried."""
    rows = [_host_row(place, host_set) for place, host_set in enumerate(sets, start=1)]
    return Table(_HOST_COLUMNS, rows, "  ").lines(width)


def _host_row(position: int, host_set: HostSet) -> tuple[str, ...]:
    gpus = (
        f"{host_set.gpus_per_node} of {host_set.of_gpus}"
        if host_set.gpus_per_node < host_set.of_gpus
        else f"all {host_set.of_gpus}"
    )
    return str(position), host_set.label, host_set.pool or "-", f"{gpus} {host_set.gpu}", _rate_text(host_set.rates)


def _rate_text(rates: Sequence[Decimal | None]) -> str:
    """Format the sum of hourly rates; `unknown` if any rate is unknown."""
    known = [rate for rate in rates if rate is not None]
    return "unknown" if len(known) < len(rates) else format_hourly_rate(sum(known, Decimal(0)))
