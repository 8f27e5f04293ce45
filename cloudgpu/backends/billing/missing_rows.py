"""Find recorded clusters and storage that have no ledger row.

This module must not import the recipe schema or the price data, which would slow down `cloudgpu cost`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.errors import LedgerError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import traits
from cloudgpu.text import command, plural


@dataclass(frozen=True)
class MissingRows:
    """A cluster or storage whose ledger rows are missing.

    Attributes:
        what: The cluster or storage, for example `cluster lab`.
        missing: Nodes without a row; empty for storage.
        repair: Command that restores the missing rows.
    """

    what: str
    missing: tuple[str, ...]
    repair: str

    @property
    def message(self) -> str:
        """Error message that describes the gap."""
        nodes = f"{plural(len(self.missing), 'node')} of " if self.missing else ""
        return f"the ledger has no row for {nodes}{self.what}: the cost is missing from the bill"


def missing_nodes(record: ClusterRecord, entries: Iterable[LedgerEntry]) -> tuple[str, ...]:
    """Return the nodes that were launched according to the record but appear in no ledger row."""
    if not traits(record.identity.target).launches and record.state == "making":
        return ()  # the record lists the hosts before any of them is leased
    rows = tuple(entries)
    known = {node for entry in rows for node in entry.instance_ids}
    if not traits(record.identity.target).launches:
        # The row of a host lists no instance ID before billing starts, so compare the host's name as well.
        known |= {f"{entry.spending.zone}@{record.name}" for entry in rows}
    return tuple(node for node in record.placement.instance_ids if node not in known)


def find_gaps(
    records: RecordStore, storage: Iterable[StorageRecord], ledger: Callable[[], CostLedger]
) -> tuple[MissingRows, ...]:
    """Compare this state home's records with the ledger, and return the clusters and storage with missing rows.

    Args:
        records: Records of clusters.
        storage: Records of storage.
        ledger: Function that opens the ledger. It is called only if there is a record to compare.
    """
    clusters = [record for record in records.clusters() if record.placement.instance_ids]
    missing = [
        (record, missing_nodes(record, rows_of(ledger(), record.name, record.identity.token))) for record in clusters
    ]
    gaps_found = [node_gap(record, nodes) for record, nodes in missing if nodes]
    for record in storage:
        if record.state == "ready" and not rows_of(ledger(), f"storage {record.name}", record.token):
            gaps_found.append(MissingRows(f"storage {record.name}", (), command("cloudgpu", "status", "--refresh")))
    return tuple(gaps_found)


def node_gap(record: ClusterRecord, nodes: tuple[str, ...]) -> MissingRows:
    """Return the description of the missing rows for these nodes of a cluster."""
    return MissingRows(f"cluster {record.name}", nodes, command("cloudgpu", "status", "--refresh"))


def gap_error(gaps_found: Sequence[MissingRows]) -> LedgerError:
    """Return the error for a bill that is incomplete because of missing ledger rows."""
    repairs = " and ".join(dict.fromkeys(f"`{gap.repair}`" for gap in gaps_found))
    hint = f"run {repairs} to restore the rows from the records and AWS's launch times, or select another ledger"
    return LedgerError("; ".join(gap.message for gap in gaps_found), hint=hint)


def rows_of(ledger: CostLedger, name: str, token: str) -> tuple[LedgerEntry, ...]:
    """Return the rows of the cluster or storage with this name and token; none if the token is empty."""
    return ledger.entries(cluster=name, token=token) if token else ()
