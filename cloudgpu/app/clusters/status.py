"""`status`: list the clusters recorded in this state home and the age of the records. Query the cloud on request."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.backends.base import Backend, Context
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.billing.costs import cluster_hourly_usd, entry_from_record, spent_usd
from cloudgpu.backends.billing.missing_rows import missing_nodes, rows_of
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.errors import CloudGpuError, LedgerError, StateError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.plan.costs import CENT
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore, RunRecord


@dataclass(frozen=True)
class ClusterStatus:
    """The status of one cluster.

    Attributes:
        state: The recorded state or `expired`; after a refresh, the state according to the cloud.
        age_s: Seconds since the record was last written or checked against the cloud.
        nodes: (instance ID, state) pairs according to the cloud; empty if the cloud was not queried.
        expires_in_s: Seconds until the nodes terminate themselves; negative after the expiry.
        problem: Reason why the record is damaged or the cloud could not be queried, or empty.
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

    def as_json(self) -> dict[str, Any]:
        """Return the documented `status --json` entry; unknown values of a damaged record are null."""
        record = self.record
        if record.state == "damaged":
            return self._unknown()
        return {
            "cluster": record.name,
            "state": self.state,
            "simulated": record.simulated,
            "target": record.target,
            "owner": record.owner,
            "team": record.team,
            "recipe": record.recipe,
            "region": record.region,
            "zone": record.zone,
            "instance_type": record.instance_type,
            "nodes": record.nodes,
            "instances": [{"id": node, "state": state} for node, state in self.nodes]
            or [{"id": node, "state": "unknown"} for node in record.instance_ids],
            "hourly_usd": format(cluster_hourly_usd(record), "f"),
            "spent_usd": str(self.spent_usd),
            "created_at": record.created_at.isoformat(),
            "expires_at": record.expires_at.isoformat(),
            "expires_in_s": round(self.expires_in_s),
            "extension_unfinished": record.confirmed_expires_at is not None,
            "age_s": round(self.age_s, 1),
            "problem": self.problem,
            "unbilled": list(self.unbilled),
            "runs": [{"run_id": run.run_id, "state": run.state} for run in self.runs],
        }

    def _unknown(self) -> dict[str, Any]:
        texts = ("target", "owner", "team", "recipe", "region", "zone", "instance_type")
        values = ("simulated", "nodes", "hourly_usd", "spent_usd", "created_at", "expires_at", "expires_in_s")
        return {
            "cluster": self.record.name,
            "state": self.state,
            **dict.fromkeys((*texts, *values)),
            "extension_unfinished": False,
            "instances": [],
            "age_s": round(self.age_s, 1),
            "problem": self.problem or "its record cannot be read",
            "unbilled": [],
            "runs": [{"run_id": run.run_id, "state": run.state} for run in self.runs],
        }


def list_cluster_statuses(
    records: RecordStore, now: datetime, ledger: CostLedger | None = None
) -> tuple[ClusterStatus, ...]:
    """List every cluster in this state home using its records and the ledger, without network access.

    A damaged record is listed with the state `damaged`.

    Raises:
        StateError: The state home exists and cannot be read.
    """
    runs = records.runs()
    statuses = (
        _status(record, [run for run in runs if run.cluster == record.name], now, _damage(records, record))
        for record in records.clusters()
    )
    return with_costs(tuple(statuses), now, ledger)


def with_costs(
    clusters: Sequence[ClusterStatus], now: datetime, ledger: CostLedger | None
) -> tuple[ClusterStatus, ...]:
    """Return the clusters with their cost so far."""
    return tuple(_billed(cluster, now, ledger) for cluster in clusters)


def _billed(cluster: ClusterStatus, now: datetime, ledger: CostLedger | None) -> ClusterStatus:
    """Take the cost from the ledger, so that `status` and `cost` agree; fall back to the record."""
    record = cluster.record
    if record.state == "damaged" or not record.instance_ids:
        return cluster
    unbilled: tuple[str, ...] = ()
    rows: tuple[LedgerEntry, ...] = (entry_from_record(record),)
    if ledger is not None:
        with contextlib.suppress(LedgerError):
            ledger_rows = rows_of(ledger, record.name, record.token)
            unbilled = missing_nodes(record, ledger_rows)
            rows = rows if unbilled else ledger_rows
    spent = sum((entry_usd(row, now) for row in rows), Decimal(0)).quantize(CENT)
    return replace(cluster, spent_usd=spent, unbilled=unbilled)


def _damage(records: RecordStore, record: ClusterRecord) -> str:
    return records.damage(record.name) if record.state == "damaged" else ""


def _status(record: ClusterRecord, runs: Sequence[RunRecord], now: datetime, damage: str) -> ClusterStatus:
    expired = record.expires_at <= now and record.state != "damaged"
    spent = spent_usd(record, (now - record.created_at).total_seconds())
    age_s = (now - (record.updated_at or record.created_at)).total_seconds()
    live = tuple(run for run in runs if run.ended_at is None)
    state = "expired" if expired else record.state
    expires_in_s = (record.expires_at - now).total_seconds()
    return ClusterStatus(record, state, age_s, live, spent, expires_in_s, problem=damage)


def refresh(cluster: ClusterStatus, cloud: Backend, records: RecordStore, now: datetime) -> ClusterStatus:
    """Query the cloud for the state of a cluster's nodes and update the time at which the record was confirmed.

    The state is `unknown` if the cloud cannot be queried or is not the cloud in which the cluster was created.
    """
    if cluster.record.state == "damaged":
        return cluster
    try:
        check_identity(cluster.record, cloud)
        nodes = tuple(cloud.instance_states(cluster.record.region, cluster.record.instance_ids).items())
    except CloudGpuError as err:
        return replace(cluster, state="unknown", problem=err.message)
    all_running = all(state in ("running", "pending") for _, state in nodes)
    # An expired cluster is expected to have no nodes.
    state = cluster.state if all_running or cluster.state == "expired" else "degraded"
    # Read again: `extend` may have changed the record during the query.
    present = records.last_known(cluster.record.name) or cluster.record
    record = cluster.record
    if present.state == "up":
        with contextlib.suppress(StateError):  # a full disk must not hide the response of the cloud
            record = records.save_cluster(present, now)
    return replace(cluster, record=record, state=state, age_s=0.0, nodes=nodes)


def refresh_all(
    clusters: Sequence[ClusterStatus],
    context_of: Callable[[ClusterRecord], Context],
    authorize: Callable[[ClusterRecord], None],
) -> tuple[ClusterStatus, ...]:
    """Query the state of each cluster's nodes, update the ledger, and authorize the caller on running clusters.

    Args:
        clusters: The clusters; damaged ones are returned unchanged.
        context_of: Returns the context of a cluster's target.
        authorize: Lets the caller's current address connect to a cluster.
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
