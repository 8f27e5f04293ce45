"""Find recorded launches without a ledger row, and write the missing rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.backends.base import CostLedger
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.costs import spending_of
from cloudgpu.backends.lenient_ledger import LenientLedger
from cloudgpu.errors import CloudGpuError, LedgerError
from cloudgpu.ledger.entry import LedgerEntry, Spending
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.text import command


@dataclass(frozen=True)
class Gap:
    """A resource that costs money but has no ledger row.

    Attributes:
        what: The resource, for example `cluster lab`.
        missing: Nodes without a row; empty for storage.
        repair: Command that writes the missing rows.
    """

    what: str
    missing: tuple[str, ...]
    repair: str

    @property
    def message(self) -> str:
        """The error message."""
        nodes = f"{len(self.missing)} {'node' if len(self.missing) == 1 else 'nodes'} of " if self.missing else ""
        return f"the ledger has no row for {nodes}{self.what}: what it costs is not in the bill"


def missing_nodes(record: ClusterRecord, entries: Iterable[LedgerEntry]) -> tuple[str, ...]:
    """Return the nodes that a record says were launched and no row of its cluster names."""
    if record.target == "ssh" and record.state == "making":
        return ()  # its hosts are named before any of them is leased
    rows = tuple(entries)
    known = {node for entry in rows for node in entry.instance_ids}
    if record.target == "ssh":  # a host has its row before it is leased, and that is free until it is
        known |= {f"{entry.spending.zone}@{record.name}" for entry in rows}
    return tuple(node for node in record.instance_ids if node not in known)


def gaps(records: RecordStore, storage: Iterable[StorageRecord], ledger: CostLedger) -> tuple[Gap, ...]:
    """Compare every record of this home with the ledger.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    clusters = [record for record in records.clusters() if record.instance_ids]
    found = [(record, missing_nodes(record, rows_of(ledger, record.name, record.token))) for record in clusters]
    lost = [gap_of(record, nodes) for record, nodes in found if nodes]
    for record in storage:
        if record.state == "ready" and not rows_of(ledger, f"storage {record.name}", record.token):
            lost.append(Gap(f"storage {record.name}", (), command("cloudgpu", "status", "--refresh")))
    return tuple(lost)


def gap_of(record: ClusterRecord, nodes: tuple[str, ...]) -> Gap:
    """Return the gap that these nodes of a cluster leave."""
    return Gap(f"cluster {record.name}", nodes, command("cloudgpu", "status", "--refresh"))


def gap_error(found: Sequence[Gap]) -> LedgerError:
    """Return the error of a bill that is not whole."""
    repairs = " and ".join(dict.fromkeys(f"`{gap.repair}`" for gap in found))
    hint = f"{repairs} writes the rows again from the records and AWS's own times; or select another ledger"
    return LedgerError("; ".join(gap.message for gap in found), hint=hint)


def rows_of(ledger: CostLedger, name: str, token: str) -> tuple[LedgerEntry, ...]:
    """Return the rows of the cluster or storage of this name and token; none without a token."""
    found = ledger.entries(cluster=name) if token else ()
    return tuple(entry for entry in found if entry.spending.entry_id.startswith(f"{token}/"))


def restore(context: CloudContext, record: ClusterRecord) -> None:
    """Write the rows of nodes that have none again, from the record and the cloud's launch times.

    A launch that the cloud has forgotten is taken to have been when the cluster's record was made: a bill may be too
    high, never too low.

    Raises:
        LedgerError: The ledger cannot be written, and is not a lenient one.
    """
    ledger = context.ledger
    nodes = missing_nodes(record, rows_of(ledger, record.name, record.token))
    if not nodes or unusable(ledger):
        return
    started = _started(context, record, nodes)
    row = spending_of(record, min(started.values()))
    if not reopened(ledger, row):
        return
    for node in nodes:
        ledger.launched(row.entry_id, [node], started[node])
    count = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    context.emit(
        Note(f"the ledger had no row for {count} of cluster {record.name}; it was written again from the record")
    )


def unusable(ledger: CostLedger) -> bool:
    """Return True if the ledger has already failed, so that its rows are unknown."""
    return isinstance(ledger, LenientLedger) and ledger.failed


def reopened(ledger: CostLedger, row: Spending) -> bool:
    """Open a row that was lost. Return False where a lenient ledger cannot.

    Raises:
        LedgerError: The ledger cannot be written, and is not a lenient one.
    """
    try:
        ledger.open(row)
    except LedgerError as err:
        if not isinstance(ledger, LenientLedger):
            raise
        ledger.remember(err)
        return False
    return True


def _started(context: CloudContext, record: ClusterRecord, nodes: Sequence[str]) -> dict[str, datetime]:
    try:
        known = context.cloud.lifetimes(record.region, nodes)
    except CloudGpuError:
        known = {}
    found = {node: known[node].started_at if node in known else None for node in nodes}
    return {node: at or record.created_at for node, at in found.items()}
