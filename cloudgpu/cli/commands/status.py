"""`cloudgpu status`: list clusters from local records, or from the cloud with --refresh."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from cloudgpu.app.cluster_status import ClusterStatus, current_state, list_cluster_statuses, refresh_all, with_costs
from cloudgpu.backends.billing.cluster_billing import node_gap
from cloudgpu.backends.billing.costs import cost_items
from cloudgpu.backends.billing.retained_billing import restore_storage_rows
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options import Json
from cloudgpu.cli.render.error import UNREADABLE, damaged_line
from cloudgpu.cli.terminal.number_format import age, duration, format_time, money, relative_time
from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.clock import utc_text
from cloudgpu.plan.costs import unpriced
from cloudgpu.rehearsal.layout import ended_instances
from cloudgpu.state.run_records import RunRecord
from cloudgpu.targets import as_target, traits
from cloudgpu.text import command, plural

_RUNS = (
    Column("run"),
    Column("state"),
    Column("started", priority=3, narrow="hide"),
    Column(priority=1, label="started"),
    Column("took", right=True, priority=1),
    Column("result", priority=2, narrow="wrap", least=24),
)


def status_lines(clusters: Sequence[ClusterStatus], now: datetime, width: int | None = None) -> list[str]:
    """Return one block per cluster, or a single line if none is recorded."""
    if not clusters:
        return ["no cluster is recorded on this machine"]
    return wrap_lines([line for cluster in clusters for line in _block(cluster, now)], width)


def run_lines(
    runs: Sequence[RunRecord],
    damaged: Sequence[str],
    clusters: Sequence[ClusterStatus],
    now: datetime,
    reasons: Mapping[str, str] | None = None,
    width: int | None = None,
) -> list[str]:
    """Return a table of runs, oldest first, then one line per run whose record cannot be read.

    Args:
        runs: The runs whose records can be read.
        damaged: IDs of the runs whose records cannot be read.
        clusters: The clusters that still exist according to this machine's records.
        now: The current time.
        reasons: Run ID -> reason why the record cannot be read.
        width: Width of the terminal in columns; None for a pipe or a file.
    """
    if not runs and not damaged:
        return ["", "no runs"]
    recorded = {cluster.record.name: cluster for cluster in clusters}
    table = Table(_RUNS, [_run_row(run, recorded.get(run.cluster), now) for run in runs])
    return ["", *table.lines(width), *wrap_lines([damaged_line(run_id, reasons or {}) for run_id in damaged], width)]


def run_rows(
    runs: Sequence[RunRecord],
    clusters: Sequence[ClusterStatus],
    damaged: Sequence[str] = (),
    reasons: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return the documented rows of `status --all --json`. Unknown fields of a damaged record are null."""
    recorded = {cluster.record.name: cluster for cluster in clusters}
    current = [(run, *current_state(run, recorded.get(run.cluster))) for run in runs]
    unknown = dict.fromkeys(("cluster", "recipe", "started_at", "ended_at"))
    return [
        {
            "run_id": run.run_id,
            "cluster": run.cluster,
            "recipe": run.recipe,
            "state": state,
            "reason": reason,
            "started_at": utc_text(run.started_at),
            "ended_at": utc_text(run.ended_at) if run.ended_at else None,
            "metrics": dict(run.metrics),
        }
        for run, state, reason in current
    ] + [
        {
            "run_id": run_id,
            "state": "damaged",
            **unknown,
            "reason": (reasons or {}).get(run_id) or UNREADABLE,
            "metrics": {},
        }
        for run_id in damaged
    ]


def _run_row(run: RunRecord, cluster: ClusterStatus | None, now: datetime) -> tuple[str, ...]:
    took = "" if run.ended_at is None else duration((run.ended_at - run.started_at).total_seconds())
    figures = ", ".join(f"{name} {value:g}" for name, value in run.metrics.items())
    state, reason = current_state(run, cluster)
    return run.run_id, state, format_time(run.started_at), relative_time(run.started_at, now), took, reason or figures


def _block(cluster: ClusterStatus, now: datetime) -> Iterator[str]:
    record = cluster.record
    if cluster.state == "damaged":
        yield f"{record.name}  damaged"
        yield f"  its record, last written {age(cluster.age_s)} ago, cannot be read; its resources and cost are unknown"
        if cluster.problem:
            yield f"  {cluster.problem}"
        yield f"  to find the cluster by its tag and delete it: {command('cloudgpu', 'down', record.name)}"
        return
    identity, placement, lifecycle = record.identity, record.placement, record.lifecycle
    team = f", team {identity.team}" if identity.team else ""
    where = placement.zone or "no zone yet"
    expiry = f"{format_time(lifecycle.expires_at)}, {relative_time(lifecycle.expires_at, now)}"
    state = "creating" if cluster.state == "making" else cluster.state
    yield f"{record.name}  {state}{'  (simulated)' if record.simulated else ''}"
    yield f"  {placement.nodes} x {placement.instance_type} in {where}, owner {identity.owner}{team}"
    yield f"  {_money(cluster)}; expires {expiry}"
    if lifecycle.confirmed_expires_at is not None:
        at = format_time(lifecycle.confirmed_expires_at)
        again = command("cloudgpu", "extend", record.name, "--until", f"{lifecycle.expires_at:%Y-%m-%dT%H:%M:%SZ}")
        yield f"  an extension was interrupted: some nodes may expire at {at}; to complete it: {again}"
    yield from (f"  {node}  {state}" for node, state in cluster.nodes)
    lost = _what_is_lost(cluster)
    if lost:
        yield f"  {lost}; delete what is left: {command('cloudgpu', 'down', record.name)}"
    yield from (
        f"  run {run.run_id}  {current_state(run, cluster)[0]}, started {relative_time(run.started_at, now)}"
        for run in cluster.runs
    )
    cloud = "the cloud" if traits(record.identity.target).launches else "its hosts"
    if cluster.problem:
        yield f"  {cloud} could not be queried: {cluster.problem}"
    recorded = f"as recorded {age(cluster.age_s)} ago; to query {cloud}: --refresh"
    yield f"  {f'as reported by {cloud} just now' if cluster.nodes else recorded}"


def _what_is_lost(cluster: ClusterStatus) -> str:
    """Return which nodes are lost and why; empty if none is."""
    if cluster.stopped_at is not None:
        return f"the rehearsal cloud was stopped at {format_time(cluster.stopped_at)}, and its nodes ended with it"
    if cluster.state not in ("degraded", "terminated"):
        return ""
    lost = "every node" if cluster.state == "terminated" else plural(len(cluster.nodes) - cluster.running, "node")
    spot = cluster.record.placement.market == "spot"
    return f"{lost} of the cluster is lost{', most likely interrupted because they are spot nodes' if spot else ''}"


def _money(cluster: ClusterStatus) -> str:
    hourly = money(cluster.hourly_usd)
    if cluster.state == "making" and not cluster.record.placement.instance_ids:
        charges = "AWS would charge " if cluster.record.simulated else ""
        return f"{charges}{hourly} an hour; no instances recorded yet"
    if cluster.record.simulated:
        return f"AWS would charge {hourly} an hour, {money(cluster.spent_usd)} so far"
    unknown = () if traits(cluster.record.identity.target).launches else unpriced(cost_items(cluster.record))
    besides = f", and items without a rate: {', '.join(unknown)}" if unknown else ""
    return f"{hourly} an hour, {money(cluster.spent_usd)} so far{besides}"


def status(
    refresh: Annotated[bool, typer.Option("--refresh", help="Query the cloud for every node's state.")] = False,
    runs: Annotated[bool, typer.Option("--all", help="Also list every run, including finished ones.")] = False,
    json: Json = False,
) -> None:
    """List running clusters and their runs.

    Lists the clusters recorded on this machine, except those whose deletion is confirmed, and the age of each record.
    """
    context = command_context(json=json, needs_disk=False)
    now = context.clock.now()
    ended = ended_instances(context.home)
    clusters = list_cluster_statuses(context.records, now, context.readable_ledger(), ended)
    if refresh:
        clusters = refresh_all(
            clusters,
            lambda record: context.deletion_context(as_target(record.identity.target)),
            context.authorize_caller,
        )
        restore_storage_rows(context.lenient_ledger(), context.storage_records.all(), context.clock)
        clusters = with_costs(clusters, now, context.lenient_ledger(), ended)
    for status_row in (status_row for status_row in clusters if status_row.unbilled):
        gap = node_gap(status_row.record, status_row.unbilled)
        context.screen.remark(f"warning: {gap.message}; to restore the ledger row: {gap.repair}")
    past = context.records.runs() if runs else []
    damaged = context.records.damaged_runs() if runs else []
    reasons = {run_id: context.records.run_damage(run_id) for run_id in damaged}
    if json:
        rows = run_rows(past, clusters, damaged, reasons)
        context.screen.document({"clusters": [status_row.as_json() for status_row in clusters], "runs": rows})
        return
    context.screen.lines(status_lines(clusters, now, context.screen.width))
    if runs:
        context.screen.lines(run_lines(past, damaged, clusters, now, reasons, context.screen.width))
