"""Restore the ledger rows of a cluster's nodes from its record and the cloud's launch times."""

from collections.abc import Sequence
from datetime import datetime

from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.backends.billing.missing_rows import has_failed, missing_nodes, reopen_row, rows_of
from cloudgpu.errors import CloudGpuError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord


def restore_missing_rows(context: CloudContext, record: ClusterRecord) -> None:
    """Restore the missing rows of a cluster's nodes from its record and the cloud's launch times.

    If the cloud no longer reports a node's launch time, the creation time of the cluster's record is used instead. The
    bill may then be too high, but not too low.

    Raises:
        LedgerError: The ledger is not lenient and cannot be written.
    """
    ledger = context.ledger
    nodes = missing_nodes(record, rows_of(ledger, record.name, record.identity.token))
    if not nodes or has_failed(ledger):
        return
    started = _start_times(context, record, nodes)
    row = spending_of(record, min(started.values()))
    if not reopen_row(ledger, row):
        return
    for node in nodes:
        ledger.launched(row.entry_id, [node], started[node])
    count = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    context.emit(Note(f"the ledger had no row for {count} of cluster {record.name}; the row has been restored"))


def _start_times(context: CloudContext, record: ClusterRecord, nodes: Sequence[str]) -> dict[str, datetime]:
    try:
        known = context.cloud.lifetimes(record.placement.region, nodes)
    except CloudGpuError:
        known = {}
    times = {node: known[node].started_at if node in known else None for node in nodes}
    return {node: at or record.identity.created_at for node, at in times.items()}
