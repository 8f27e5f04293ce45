"""`status`: list the clusters of this state home, and report what is still running when a signal ends a command."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.backends.base import Backend, Context
from cloudgpu.backends.billing.cluster_billing import missing_nodes, rows_of, until_stop
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.billing.costs import (
    billed_usd,
    cluster_hourly_usd,
    entry_from_record,
    running_hourly_usd,
    spent_usd,
)
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.backends.sweep import ClusterResources
from cloudgpu.clock import utc_text
from cloudgpu.errors import CloudGpuError, LedgerError, StateError
from cloudgpu.launch.inventory import ALIVE_STATES
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.state.storage_records import StorageRecords
from cloudgpu.targets import traits
from cloudgpu.text import command, plural, printable

NOTHING_RUNNING = "nothing that this command started is still running"


class StillRunning:
    """Lists the clusters and runs that a command leaves running. Reads only local records, so it works offline.

    The list contains the clusters recorded since this object was created, and the clusters listed in `clusters`.
    """

    def __init__(self, records: RecordStore, clusters: Collection[str] = ()) -> None:
        self._records = records
        self._named = frozenset(clusters)
        try:
            self._before = frozenset(record.name for record in records.clusters())
        except StateError:  # `down NAME` does not need the other records, so they must not stop it
            self._before = frozenset()

    def lines(self) -> list[str]:
        """Return the remaining clusters and runs with their hourly cost and the commands to manage them."""
        try:
            recorded = self._records.clusters()
        except StateError as err:
            return [f"what is still running is unknown: {err.message}", *([f"    {err.hint}"] if err.hint else [])]
        clusters = [cluster for cluster in recorded if cluster.name in self._named or cluster.name not in self._before]
        runs = [run for run in self._records.runs() if run.ended_at is None and run.ranks]
        lines = [
            line for cluster in clusters for line in _of(cluster, [run for run in runs if run.cluster == cluster.name])
        ]
        return lines or [NOTHING_RUNNING]


def storage_lines(records: StorageRecords, name: str) -> list[str]:
    """Return lines with the state of storage that was being created or deleted, and the command that deletes it."""
    record = records.get(name)
    if record is None:
        return [NOTHING_RUNNING]
    states = {"making": "may be partly created", "ready": "exists", "deleting": "may still exist"}
    price = "simulated, nothing is charged" if record.simulated else "it costs money until it is deleted"
    return [
        f"storage {printable(name)} {states[record.state]} in {record.region}: {price}",
        f"    delete it: {command('cloudgpu', 'storage', 'delete', name)}",
    ]


def swept_clusters_lines(clusters: Sequence[ClusterResources], again: str) -> list[str]:
    """Return lines for the clusters whose deletion by `sweep` was not confirmed, and the command that deletes them."""
    lines = [
        f"cluster {printable(cluster.cluster)} may still exist in {', '.join(cluster.regions)}" for cluster in clusters
    ]
    return [*lines, f"    delete them: {again}"] if lines else [NOTHING_RUNNING]


def _of(cluster: ClusterRecord, runs: Collection[RunRecord]) -> Iterator[str]:
    for run in runs:
        finished = f"has finished ({run.state}); its outputs may still be on the nodes"
        state = finished if run.judged else "may still be running"
        yield f"run {run.run_id} {state}"
        yield f"    follow it: {command('cloudgpu', 'attach', run.run_id)}"
        if not run.judged:
            yield f"    stop it:   {command('cloudgpu', 'cancel', run.run_id)}"
    yield f"cluster {printable(cluster.name)} {_state(cluster)}"
    yield f"    delete it: {command('cloudgpu', 'down', cluster.name)}"


def _state(cluster: ClusterRecord) -> str:
    if cluster.state == "damaged":
        return "has a record that cannot be read; its nodes may still be running"
    states = {"up": "is running", "making": "may be partly created", "ending": "may still exist"}
    until = f"{cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
    return f"{states[cluster.state]}: {_price(cluster)}, until it expires at {until}"


def _price(cluster: ClusterRecord) -> str:
    if not traits(cluster.identity.target).launches:
        return f"{plural(cluster.placement.nodes, 'self-managed host')}, no charge"
    nodes = f"{cluster.placement.nodes} x {cluster.placement.instance_type or 'unknown type'}"
    hourly = cluster_hourly_usd(cluster)
    if not hourly:
        return f"{nodes}, price unknown"
    return f"{nodes}, ${hourly:.2f} an hour{' (simulated, nothing is charged)' if cluster.simulated else ''}"


@dataclass(frozen=True)
class ClusterStatus:
    """The status of one cluster.

    Attributes:
        state: The recorded state or `expired`; after a refresh, the state according to the cloud.
        age_s: Seconds since the record was last written or checked against the cloud.
        runs: Unfinished runs on the cluster.
        spent_usd: Cost so far.
        nodes: (instance ID, state) pairs according to the cloud; empty if the cloud was not queried.
        expires_in_s: Seconds until the nodes terminate themselves; negative after the expiry.
        problem: Reason why the record cannot be read or the cloud could not be queried; otherwise empty.
    """

    record: ClusterRecord
    state: str
    age_s: float
    runs: tuple[RunRecord, ...]
    spent_usd: Decimal
    expires_in_s: float = 0.0
    nodes: tuple[tuple[str, str], ...] = ()
    problem: str = ""
    unbilled: tuple[str, ...] = ()
    """Nodes in the record that have no ledger row."""
    stopped_at: datetime | None = None
    """When the simulated cloud was stopped, which terminated all nodes; None if it was not."""

    @property
    def hourly_usd(self) -> Decimal:
        """The exact cost per hour in USD: of the running nodes if their state is known, else of all nodes."""
        if self.nodes or self.stopped_at is not None:
            return running_hourly_usd(self.record, self.running)
        return cluster_hourly_usd(self.record)

    @property
    def running(self) -> int:
        """Number of nodes that are pending or running according to the cloud."""
        return sum(state in ALIVE_STATES for _, state in self.nodes)

    @property
    def _recorded_state(self) -> str:
        """State of each node if the cloud was not queried. Known only if the cluster is recorded as running."""
        if self.stopped_at is not None:
            return "terminated"
        return "running" if self.state == "up" else "unknown"

    def as_json(self) -> dict[str, Any]:
        """Return the documented `status --json` entry. For a damaged record, unknown values are null."""
        record = self.record
        if record.state == "damaged":
            return self._unknown()
        return {
            "cluster": record.name,
            "state": self.state,
            "simulated": record.simulated,
            "target": record.identity.target,
            "owner": record.identity.owner,
            "team": record.identity.team,
            "recipe": record.identity.recipe,
            "region": record.placement.region,
            "zone": record.placement.zone,
            "instance_type": record.placement.instance_type,
            "nodes": record.placement.nodes,
            "instances": [{"id": node, "state": state} for node, state in self.nodes]
            or [{"id": node, "state": self._recorded_state} for node in record.placement.instance_ids],
            "hourly_usd": format(self.hourly_usd, "f"),
            "spent_usd": str(self.spent_usd),
            "created_at": utc_text(record.identity.created_at),
            "expires_at": utc_text(record.lifecycle.expires_at),
            "expires_in_s": round(self.expires_in_s),
            "extension_unfinished": record.lifecycle.confirmed_expires_at is not None,
            "age_s": round(self.age_s, 1),
            "problem": self.problem,
            "stopped_at": None if self.stopped_at is None else utc_text(self.stopped_at),
            "unbilled": list(self.unbilled),
            "runs": [{"run_id": run.run_id, "state": current_state(run, self)[0]} for run in self.runs],
        }

    def _unknown(self) -> dict[str, Any]:
        texts = ("target", "owner", "team", "recipe", "region", "zone", "instance_type")
        values = ("simulated", "nodes", "hourly_usd", "spent_usd", "created_at", "expires_at", "expires_in_s")
        return {
            "cluster": self.record.name,
            "state": self.state,
            **dict.fromkeys((*texts, *values)),
            "extension_unfinished": False,
            "stopped_at": None,
            "instances": [],
            "age_s": round(self.age_s, 1),
            "problem": self.problem or "its record cannot be read",
            "unbilled": [],
            "runs": [{"run_id": run.run_id, "state": run.state} for run in self.runs],
        }


def current_state(run: RunRecord, cluster: ClusterStatus | None) -> tuple[str, str]:
    """Return the state of a run and the reason for it.

    They differ from the recorded ones if no command has recorded yet how the run ended with its nodes.

    Args:
        run: The run.
        cluster: The run's cluster; None if it has no record, because it was deleted.
    """
    if run.judged:
        return run.state, run.reason
    if cluster is None:
        return "unknown", f"last seen {run.state}; its cluster is deleted"
    if cluster.stopped_at is not None:
        return "lost", "its nodes ended when the rehearsal cloud was stopped"
    return run.state, run.reason


def list_cluster_statuses(
    records: RecordStore,
    now: datetime,
    ledger: CostLedger | None = None,
    ended: Mapping[str, datetime] | None = None,
) -> tuple[ClusterStatus, ...]:
    """List every cluster in this state home from the records and the ledger, without network access.

    A damaged record is listed with the state `damaged`.

    Args:
        records: The records of this state home.
        now: The current time.
        ledger: The ledger, for the costs; None to compute them from the records.
        ended: Instance ID -> time of the stop of the rehearsal cloud that ended the instance.

    Raises:
        StateError: The state home exists but cannot be read.
    """
    runs, ended = records.runs(), ended or {}
    statuses = (
        _with_stop(
            _status(record, [run for run in runs if run.cluster == record.name], now, _damage(records, record)),
            ended,
        )
        for record in records.clusters()
    )
    return with_costs(tuple(statuses), now, ledger, ended)


def _with_stop(cluster: ClusterStatus, ended: Mapping[str, datetime]) -> ClusterStatus:
    stopped_at = cluster.record.ended_with_cloud(ended)
    if cluster.state == "damaged" or stopped_at is None:
        return cluster
    state = "expired" if cluster.state == "expired" else "terminated"
    return replace(cluster, state=state, stopped_at=stopped_at)


def with_costs(
    clusters: Sequence[ClusterStatus], now: datetime, ledger: CostLedger | None, ended: Mapping[str, datetime]
) -> tuple[ClusterStatus, ...]:
    """Return the clusters with their cost so far; `ended` as for `list_cluster_statuses`."""
    return tuple(_billed(cluster, now, ledger, ended) for cluster in clusters)


def _billed(
    cluster: ClusterStatus, now: datetime, ledger: CostLedger | None, ended: Mapping[str, datetime]
) -> ClusterStatus:
    """Take the cost from the ledger, so that `status` and `cost` agree; fall back to the record."""
    record = cluster.record
    if record.state == "damaged" or not record.placement.instance_ids:
        return cluster
    unbilled: tuple[str, ...] = ()
    rows: tuple[LedgerEntry, ...] = (entry_from_record(record),)
    if ledger is not None:
        with contextlib.suppress(LedgerError):
            ledger_rows = rows_of(ledger, record.name, record.identity.token)
            unbilled = missing_nodes(record, ledger_rows)
            rows = rows if unbilled else ledger_rows
    stopped = [until_stop(row, ended, now) for row in rows]
    return replace(cluster, spent_usd=billed_usd(stopped, now), unbilled=unbilled)


def _damage(records: RecordStore, record: ClusterRecord) -> str:
    return records.damage(record.name) if record.state == "damaged" else ""


def _status(record: ClusterRecord, runs: Sequence[RunRecord], now: datetime, damage: str) -> ClusterStatus:
    expired = record.lifecycle.expires_at <= now and record.state != "damaged"
    spent = spent_usd(record, (now - record.identity.created_at).total_seconds())
    age_s = (now - (record.lifecycle.updated_at or record.identity.created_at)).total_seconds()
    live = tuple(run for run in runs if run.ended_at is None)
    state = "expired" if expired else record.state
    expires_in_s = (record.lifecycle.expires_at - now).total_seconds()
    return ClusterStatus(record, state, age_s, live, spent, expires_in_s, problem=damage)


def refresh(cluster: ClusterStatus, cloud: Backend, records: RecordStore, now: datetime) -> ClusterStatus:
    """Query the cloud for the state of a cluster's nodes, and update the timestamp of a running cluster's record.

    The state is `unknown` if the cloud cannot be queried or is not the cloud in which the cluster was created.
    """
    if cluster.record.state == "damaged":
        return cluster
    try:
        check_identity(cluster.record, cloud)
        nodes = tuple(
            cloud.instance_states(cluster.record.placement.region, cluster.record.placement.instance_ids).items()
        )
    except CloudGpuError as err:
        return replace(cluster, state="unknown", problem=err.message)
    running = sum(state in ALIVE_STATES for _, state in nodes)
    # An expired cluster is expected to have no nodes.
    whole = running == len(nodes) or cluster.state == "expired"
    recorded = "expired" if cluster.state == "expired" else cluster.record.state
    state = recorded if whole else "degraded" if running else "terminated"
    # Read the record again, because `extend` may have changed it during the query.
    present = records.last_known(cluster.record.name) or cluster.record
    record = cluster.record
    if present.state == "up":
        with contextlib.suppress(StateError):  # a full disk must not hide the cloud's response
            record = records.save_cluster(present, now)
    stopped_at = None if running else cluster.stopped_at
    return replace(cluster, record=record, state=state, age_s=0.0, nodes=nodes, stopped_at=stopped_at)


def refresh_all(
    clusters: Sequence[ClusterStatus],
    context_of: Callable[[ClusterRecord], Context],
    authorize: Callable[[ClusterRecord], None],
) -> tuple[ClusterStatus, ...]:
    """Query the state of each cluster's nodes, update the ledger, and open running clusters to the caller's address.

    Args:
        clusters: The clusters; damaged ones are returned unchanged.
        context_of: Function that returns the context for a cluster's target.
        authorize: Function that authorizes SSH to a cluster from the caller's current address.
    """
    return tuple(_refreshed(cluster, context_of, authorize) for cluster in clusters)


def _refreshed(
    cluster: ClusterStatus,
    context_of: Callable[[ClusterRecord], Context],
    authorize: Callable[[ClusterRecord], None],
) -> ClusterStatus:
    if cluster.record.state == "damaged":
        return cluster
    try:
        context = context_of(cluster.record)
        refreshed = refresh(cluster, context.backend, context.records, context.clock.now())
        if not refreshed.problem:
            with contextlib.suppress(CloudGpuError):  # the state of the nodes is still shown if the ledger fails
                context.clusters.record_costs(refreshed.record)
        if refreshed.state == "up":
            authorize(refreshed.record)
    except CloudGpuError as err:
        # A failure for one cluster must not prevent querying the other clusters.
        return replace(cluster, state="unknown", problem=err.message)
    return refreshed


def authorize_if_possible(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Authorize SSH from the caller's address, and return the updated record.

    If that fails, emit a note and return the record unchanged.
    """
    try:
        check_identity(record, context.backend)
        return context.clusters.authorize(record)
    except CloudGpuError as err:
        context.emit(Note(f"cannot authorize SSH from your address to cluster {record.name}: {err.message}"))
        return record
