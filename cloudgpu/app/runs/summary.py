"""Build a run's outcome from its record, its cluster, the stages and the ledger."""

import contextlib
from dataclasses import replace
from typing import Any

from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.errors import LedgerError, StateError
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_record import RunRecord
from cloudgpu.targets import is_simulated
from cloudgpu.text import command


class RunSummary:
    """Builds the outcomes of runs for one command."""

    def __init__(self, context: Context, stages: Stages) -> None:
        self._context = context
        self._stages = stages
        self._billing = ClusterBilling(context)

    def partial_result(self, record: RunRecord) -> dict[str, Any]:
        """Return the JSON outcome of an aborted run from its records.

        If the ledger cannot be read, return only the run ID, the cluster's name and the stages.
        """
        record = self.known(record)
        if not record.stages:
            record = replace(record, stages=tuple(self._stages.done))
        try:
            outcome = self.outcome(record)
        except LedgerError:
            return {"run_id": record.run_id, "cluster": record.cluster, "stages": self._stages.as_json()}
        cluster = self.cluster(record)
        return replace(outcome, left=(remaining_cluster_line(cluster),) if cluster else ()).as_json()

    def known(self, record: RunRecord) -> RunRecord:
        """Return the stored record of the run, or the given record if none is stored or it cannot be read."""
        with contextlib.suppress(StateError):
            return self._context.records.run(record.run_id) or record
        return record

    def cluster(self, record: RunRecord) -> ClusterRecord | None:
        """Return the run's cluster; None if it is deleted or its record is unreadable (`down` then searches by tag)."""
        try:
            return self._context.records.cluster(record.cluster)
        except StateError as err:
            self._context.emit(Note(err.message))
            return None

    def outcome(self, record: RunRecord, cluster: ClusterRecord | None = None, kept: str = "") -> RunOutcome:
        """Return the current outcome of a run.

        Args:
            record: The run.
            cluster: The run's cluster before its deletion; if None, the cluster is read from the records.
            kept: Reason why the cluster was kept; empty if it was deleted.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        cluster = cluster or self.cluster(record)
        paths = self._context.home.run(record.run_id)
        outcome = RunOutcome(
            record=record,
            simulated=is_simulated(record.target),
            usd=self._billing.run_usd(record),
            kept=kept,
            logs=str(paths.logs),
            outputs=str(paths.outputs),
        )
        if cluster is None:
            return outcome
        return replace(
            outcome,
            nodes=cluster.placement.nodes,
            instance_type=cluster.placement.instance_type,
            zone=cluster.placement.zone,
            left=(remaining_cluster_line(cluster),) if kept else (),
        )


def remaining_cluster_line(cluster: ClusterRecord) -> str:
    """Describe a remaining cluster in one line, with its expiry and the command that deletes it."""
    states = {"up": "is running until", "ending": "is not confirmed deleted; its nodes terminate themselves at"}
    state = states.get(cluster.state, "may be incomplete; its nodes terminate themselves at")
    what = f"cluster {cluster.name} ({cluster.placement.nodes} x {cluster.placement.instance_type or '?'})"
    end = command("cloudgpu", "down", cluster.name)
    return f"{what} {state} {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC; delete it with `{end}`"


def describe_run_and_cluster(record: RunRecord, cluster: ClusterRecord | None) -> str:
    """Describe the run and its cluster for the prompt after Ctrl-C."""
    location = (
        ""
        if cluster is None
        else f" on cluster {cluster.name} ({cluster.placement.nodes} x {cluster.placement.instance_type})"
    )
    return f"run {record.run_id}{location}"
