"""`cloudgpu status`: list clusters from local records, or from the cloud with --refresh."""

from typing import Annotated

import typer

from cloudgpu.app.clusters.status import list_cluster_statuses, refresh_all, with_costs
from cloudgpu.backends.billing.cluster_billing import node_gap
from cloudgpu.backends.billing.retained_billing import restore_storage_rows
from cloudgpu.cli.access import authorize_caller
from cloudgpu.cli.context import command_context
from cloudgpu.cli.options.shared import Json
from cloudgpu.cli.render.status import run_lines, run_rows, status_lines
from cloudgpu.rehearsal.layout import ended_instances
from cloudgpu.targets import as_target


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
            lambda record: authorize_caller(context, record),
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
