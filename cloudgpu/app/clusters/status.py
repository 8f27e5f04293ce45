"""`status`: what this home knows to be up, with the age of that knowledge; the cloud is asked only when told to."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from cloudgpu.backends.base import Backend, Ledger
from cloudgpu.backends.costs import cluster_hourly_usd, recorded_entry, spent_usd
from cloudgpu.backends.deletion import check_identity
from cloudgpu.backends.missing_rows import missing_nodes, rows_of
from cloudgpu.errors import CloudGpuError, LedgerError, StateError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import Entry
from cloudgpu.plan.costs import CENT
from cloudgpu.state.records import ClusterRecord, Records, RunRecord


@dataclass(frozen=True)
class ClusterStatus:
    """One cluster.

    Attributes:
        state: As recorded, or `expired`; after a refresh as the cloud says.
        age_s: Seconds since the record was last confirmed.
        nodes: Instance id -> state by the cloud; empty when it was not asked.
        expires_in_s: Seconds until its nodes end themselves; negative after that.
        problem: Why the cloud could not tell; empty when it did, or was not asked.
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
    """Nodes that the record names and the ledger has no row for."""

    def as_json(self) -> dict[str, Any]:
        """The documented `status --json` row; of a damaged record, null for all that it no longer tells."""
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
        figures = ("simulated", "nodes", "hourly_usd", "spent_usd", "created_at", "expires_at", "expires_in_s")
        return {
            "cluster": self.record.name,
            "state": self.state,
            **dict.fromkeys((*texts, *figures)),
            "extension_unfinished": False,
            "instances": [],
            "age_s": round(self.age_s, 1),
            "problem": self.problem or "its record cannot be read",
            "unbilled": [],
            "runs": [{"run_id": run.run_id, "state": run.state} for run in self.runs],
        }


def recorded(records: Records, now: datetime, ledger: Ledger | None = None) -> tuple[ClusterStatus, ...]:
    """Every cluster of this home from its records and the ledger; no network. A damaged record is listed as such.

    Raises:
        StateError: The home is there and cannot be read.
    """
    runs = records.runs()
    found = (
        _status(record, [run for run in runs if run.cluster == record.name], now, _damage(records, record))
        for record in records.clusters()
    )
    return billed(tuple(found), now, ledger)


def billed(clusters: Sequence[ClusterStatus], now: datetime, ledger: Ledger | None) -> tuple[ClusterStatus, ...]:
    """Return the clusters with what they have cost by now."""
    return tuple(_billed(one, now, ledger) for one in clusters)


def _billed(one: ClusterStatus, now: datetime, ledger: Ledger | None) -> ClusterStatus:
    """Take what it has cost from the ledger, so that `status` and `cost` agree; else from its record, until now."""
    record = one.record
    if record.state == "damaged" or not record.instance_ids:
        return one
    unbilled: tuple[str, ...] = ()
    rows: tuple[Entry, ...] = (recorded_entry(record),)
    if ledger is not None:
        with contextlib.suppress(LedgerError):
            found = rows_of(ledger, record.name, record.token)
            unbilled = missing_nodes(record, found)
            rows = rows if unbilled else found
    spent = sum((entry_usd(row, now) for row in rows), Decimal(0)).quantize(CENT)
    return replace(one, spent_usd=spent, unbilled=unbilled)


def _damage(records: Records, record: ClusterRecord) -> str:
    return records.damage(record.name) if record.state == "damaged" else ""


def _status(record: ClusterRecord, runs: Sequence[RunRecord], now: datetime, damage: str) -> ClusterStatus:
    expired = record.expires_at <= now and record.state != "damaged"
    spent = spent_usd(record, (now - record.created_at).total_seconds())
    age_s = (now - (record.updated_at or record.created_at)).total_seconds()
    live = tuple(run for run in runs if run.ended_at is None)
    state = "expired" if expired else record.state
    in_s = (record.expires_at - now).total_seconds()
    return ClusterStatus(record, state, age_s, live, spent, in_s, problem=damage)


def refresh(one: ClusterStatus, cloud: Backend, records: Records, now: datetime) -> ClusterStatus:
    """The same cluster with its nodes' states as the cloud tells them, and its record confirmed now.

    Where the cloud cannot tell, or is not the one that the cluster was made in, its state is `unknown`.
    """
    if one.record.state == "damaged":
        return one
    try:
        check_identity(one.record, cloud)
        nodes = tuple(cloud.nodes_alive(one.record.region, one.record.instance_ids).items())
    except CloudGpuError as err:
        return replace(one, state="unknown", problem=err.message)
    whole = all(state in ("running", "pending") for _, state in nodes)
    # That an expired cluster has no nodes is as it should be.
    state = one.state if whole or one.state == "expired" else "degraded"
    # Read again: an `extend` may have written it while the cloud was asked.
    present = records.last_known(one.record.name) or one.record
    record = one.record
    if present.state == "up":
        with contextlib.suppress(StateError):  # a full disk hides nothing of what the cloud said
            record = records.save_cluster(present, now)
    return replace(one, record=record, state=state, age_s=0.0, nodes=nodes)
