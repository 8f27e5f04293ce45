"""Find, restore and close a cluster's ledger rows, also after the rehearsal cloud was stopped, and compute costs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.errors import BusyError, LedgerError, StateError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import LedgerEntry, PartEnd
from cloudgpu.state.cluster_record import ClusterRecord, last_end
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.state.storage_records import StorageRecord
from cloudgpu.targets import is_simulated, traits
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


def of_existing_clusters(rows: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Return the rows of the clusters that have an open row. The deletion of all other clusters is confirmed.

    A closed row of a failed attempt is included, because only its nodes are confirmed deleted.
    """
    existing = {row.spending.entry_id.partition("/")[0] for row in rows if row.state == "open"}
    return tuple(row for row in rows if row.spending.entry_id.partition("/")[0] in existing)


def until_stop(row: LedgerEntry, ended: Mapping[str, datetime], now: datetime) -> LedgerEntry:
    """Return the ledger row, with the end of its nodes if all of them ended because the rehearsal cloud was stopped.

    A NAT gateway and Elastic IPs outlast a stop, and are billed until they are deleted.

    Args:
        row: The ledger row; returned unchanged if the end of its nodes is recorded.
        ended: Instance ID -> time of the stop that ended the instance.
        now: The current time, to which a later time of a stop is limited.
    """
    end = last_end(row.instance_ids, ended)
    recorded = row.state == "closed" or "nodes" in row.parts
    if recorded or not row.spending.simulated or end is None:
        return row
    return replace(row, parts={**row.parts, "nodes": PartEnd(row.within_lifetime(end, now))})


def record_stop(ledger: CostLedger, ended: Mapping[str, datetime], now: datetime) -> None:
    """Record in the ledger when nodes ended because the rehearsal cloud was stopped."""
    for row in ledger.entries(state="open"):
        stopped = until_stop(row, ended, now)
        if stopped is not row:
            ledger.part_ended(row.spending.entry_id, "nodes", stopped.parts["nodes"].at)


@dataclass(frozen=True)
class ClusterBilling:
    """The ledger rows of clusters, and the costs of clusters and runs.

    A team may share the ledger, and cluster names are reused, so a recorded cluster's rows are matched by token.
    """

    context: Context

    def rows(self, record: ClusterRecord) -> tuple[LedgerEntry, ...]:
        """Return all rows of a cluster."""
        return self.rows_of(record.name, record.identity.token)

    def rows_of(self, name: str, token: str) -> tuple[LedgerEntry, ...]:
        """Return all rows of the cluster with this name and token; none if the token is empty."""
        return rows_of(self.context.ledger, name, token)

    def rows_without_record(self, name: str) -> tuple[LedgerEntry, ...]:
        """Return the rows of clusters with this name that the current owner launched in this account and endpoint."""
        cloud = self.context.backend
        owned = [
            entry
            for entry in self.context.ledger.entries(cluster=name)
            if entry.spending.owner == self.context.owner and entry.spending.target == cloud.target
        ]
        if not owned:
            return ()
        here = (cloud.account(), cloud.endpoint)
        for entry in owned:
            spending = entry.spending
            if entry.state == "open" and not spending.simulated and (spending.account, spending.endpoint) != here:
                message = f"the ledger lists cluster {name} in account {spending.account}, not in {here[0]}"
                raise StateError(message, hint="use the credentials that created the cluster")
        return tuple(entry for entry in owned if (entry.spending.account, entry.spending.endpoint) == here)

    def other_targets(self, name: str) -> tuple[str, ...]:
        """Return the other targets on which the current owner has a cluster with this name, according to open rows."""
        spendings = [entry.spending for entry in self.context.ledger.entries(cluster=name, state="open")]
        others = (row.target for row in spendings if row.owner == self.context.owner)
        return tuple(dict.fromkeys(target for target in others if target != self.context.backend.target))

    def require_free_name(self, record: ClusterRecord) -> None:
        """Reject a cluster name that is in use according to the ledger, which a team may share."""
        now = self.context.clock.now()
        for entry in self.context.ledger.entries(cluster=record.name, state="open"):
            spending = entry.spending
            same_place = (spending.account, spending.endpoint) == (record.identity.account, record.identity.endpoint)
            if (
                same_place
                and not spending.entry_id.startswith(f"{record.identity.token}/")
                and spending.expires_at > now
            ):
                raise name_in_use_error(record.name, spending.owner, f"{spending.expires_at:%Y-%m-%d %H:%M} UTC")

    def close(self, entries: Iterable[LedgerEntry], at: datetime) -> None:
        """Close the rows that are still open. Call this after the cloud has confirmed the deletion."""
        for entry in entries:
            if entry.state == "open":
                self.context.ledger.close(entry.spending.entry_id, at)

    def settle(self, entries: Iterable[LedgerEntry], *, running: bool) -> Decimal:
        """Close the open rows of self-managed hosts, and return the cost of these rows in USD.

        Args:
            entries: Ledger rows of hosts.
            running: True if the leases were still active and have just been released.
        """
        now = self.context.clock.now()
        usd = Decimal(0)
        for row in entries:
            if row.state == "open":
                # If a host no longer has a lease, the lease ended at its expiry or earlier.
                at = now if running else min(now, row.spending.expires_at)
                self.close([row], at)
                launched = row.launched_at or (row.spending.opened_at if running else None)
                usd += self.usd([replace(row, state="closed", launched_at=launched, closed_at=at)], now)
        return usd

    def usd(self, entries: Iterable[LedgerEntry], at: datetime) -> Decimal:
        """Return the total cost of these rows in USD."""
        return sum((entry_usd(entry, at) for entry in entries), Decimal(0))

    def run_usd(self, record: RunRecord) -> Decimal:
        """Return the cost of a run in USD as `cloudgpu cost` reports it; 0 if the report does not list the run."""
        simulated = is_simulated(record.target)
        bill = self.context.ledger.report(by="run", now=self.context.clock.now())
        rows = (row.usd for row in bill.rows if row.key == record.run_id and row.simulated is simulated)
        return next(rows, Decimal(0))


def name_in_use_error(name: str, owner: str, until: str) -> BusyError:
    """Return the error for a cluster name that is already in use. `until` is empty if the expiry is unknown."""
    expiry = f" until {until}" if until else ""
    used_by = f"cluster name {name} is in use by {owner or 'an unknown user'}{expiry}"
    message = f"{used_by}; that cluster was created from another state home"
    return BusyError(message, hint="choose another name with --name or --cluster")
