"""`cloudgpu status`: list clusters from local records, or from the cloud with --refresh."""

from typing import Annotated

import typer

from cloudgpu.app.clusters.status import list_cluster_statuses, with_costs
from cloudgpu.backends.missing_rows import node_gap
from cloudgpu.cli.commands.options import Json
from cloudgpu.cli.context.wiring import wire
from cloudgpu.cli.render.status import run_lines, run_rows, status_lines


def status(
    refresh: Annotated[bool, typer.Option("--refresh", help="Query the cloud for every node's state.")] = False,
    runs: Annotated[bool, typer.Option("--all", help="Also list every run, including finished ones.")] = False,
    json: Json = False,
) -> None:
    """List running clusters and their runs.

    Lists every cluster in this machine's records whose deletion is not confirmed, with the age of each record.
    """
    wiring = wire(json=json, needs_disk=False)
    now = wiring.clock.now()
    clusters = list_cluster_statuses(wiring.records, now, wiring.billing.lenient())
    if refresh:
        clusters = wiring.node_access.refreshed(clusters)
        wiring.billing.restore_storage_rows()
        clusters = with_costs(clusters, now, wiring.billing.lenient())
    for status_row in (status_row for status_row in clusters if status_row.unbilled):
        gap = node_gap(status_row.record, status_row.unbilled)
        wiring.screen.remark(f"warning: {gap.message}; to restore the ledger row: {gap.repair}")
    past = wiring.records.runs() if runs else []
    damaged = wiring.records.damaged_runs() if runs else []
    reasons = {run_id: wiring.records.run_damage(run_id) for run_id in damaged}
    if json:
        rows = run_rows(past, damaged, reasons)
        wiring.screen.document({"clusters": [status_row.as_json() for status_row in clusters], "runs": rows})
        return
    wiring.screen.lines(status_lines(clusters, now))
    if runs:
        wiring.screen.lines(run_lines(past, damaged, clusters, now, reasons))
