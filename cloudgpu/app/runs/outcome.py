"""The outcome of `train`, built from the records and the ledger, and rendered as the summary panel and as JSON."""

import contextlib
from dataclasses import dataclass, replace
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

from cloudgpu.backends.base import Context
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.errors import LedgerError, StateError
from cloudgpu.run.metrics import Measured
from cloudgpu.run.progress import Note, Stages
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import RunRecord
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

if TYPE_CHECKING:
    # Only for annotations: showing an outcome must not import the SSH client.
    from cloudgpu.run.collect import SkippedOutput


CLUSTER_DELETED = "its cluster was deleted before the download"


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run that finished or was left running.

    Attributes:
        usd: Cost of the run; if `simulated`, what AWS would have charged.
        left: Resources that are still running, one line each.
        kept: Reason why the cluster was kept; empty if it was deleted.
        logs: Directory of the ranks' logs on this machine.
        notes: Additional remarks, one sentence each.
        unended: Reason why the cluster could not be deleted, or empty.
        interrupted: Whether Ctrl-C interrupted the command.
        unfetched: Reasons why outputs are still on the nodes, one line per node; `attach` downloads the outputs.
        lost: Reasons why outputs can no longer be downloaded, one line each.
        has_checkpoint: For a run that lost nodes, whether a checkpoint was uploaded; None if unknown.
        skipped: Files that match the recipe's outputs but were not downloaded.
    """

    record: RunRecord
    simulated: bool
    measured: tuple[Measured, ...] = ()
    usd: Decimal = Decimal(0)
    nodes: int = 0
    instance_type: str = ""
    zone: str = ""
    left: tuple[str, ...] = ()
    kept: str = ""
    logs: str = ""
    outputs: str = ""
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unended: str = ""
    interrupted: bool = False
    unfetched: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    has_checkpoint: bool | None = None
    skipped: "tuple[SkippedOutput, ...]" = ()

    @property
    def lost_nodes(self) -> bool:
        """Whether the run did not succeed because nodes were lost with their data."""
        lines = (*self.lost, *self.notes)
        lost = self.record.state != "succeeded" and any("is terminated and its data is lost" in line for line in lines)
        return bool(self.record.ranks) and (self.record.state == "lost" or lost)

    @property
    def seconds(self) -> float:
        """Total duration of all stages in seconds."""
        return round(sum(seconds for _, seconds in self.record.stages), 3)

    def as_json(self) -> dict[str, Any]:
        """Return the documented output of `train --json`."""
        record = self.record
        return {
            "run_id": record.run_id,
            "cluster": record.cluster,
            "recipe": record.recipe,
            "recipe_digest": record.recipe_digest,
            "image": record.image,
            "state": record.state,
            "reason": record.reason,
            "failed_rank": record.failed_rank,
            "exit_code": record.exit_code,
            "simulated": self.simulated,
            "nodes": self.nodes,
            "instance_type": self.instance_type,
            "zone": self.zone,
            "stages": [{"name": name, "seconds": seconds} for name, seconds in record.stages],
            "seconds": self.seconds,
            "transport": record.transport or None,
            "metrics": {metric.name: metric_json(metric) for metric in self.measured},
            "cost": {"usd": str(self.usd), "simulated": self.simulated},
            "tried": list(record.tried),
            "outputs": {
                "directory": self.outputs,
                "files": list(record.outputs),
                "skipped": [output.as_json() for output in self.skipped],
            },
            "logs": self.logs,
            "tail": list(self.tail),
            "left": list(self.left),
            "kept": self.kept,
            "unfetched": list(self.unfetched),
            "lost": list(self.lost),
            "notes": list(self.notes),
            "unended": self.unended,
            "interrupted": self.interrupted,
        }


def lost_output_lines(record: RunRecord, why: str) -> tuple[str, ...]:
    """Return a line about outputs that can no longer be downloaded, or an empty tuple if none are missing."""
    patterns = ", ".join(record.uncollected)
    which = "not all outputs" if record.outputs else "no outputs"
    return (f"{which} of run {record.run_id} ({patterns}) were downloaded: {why}",) if patterns else ()


def metric_json(measured: Measured) -> dict[str, Any]:
    """Return the JSON form of a metric: value, unit, reference with its source, and share of the reference."""
    reference = measured.metric.reference
    finite = measured.value is not None and isfinite(measured.value)
    return {
        # JSON has no NaN.
        "value": measured.value if finite else None,
        "unit": measured.metric.unit,
        "better": measured.metric.better,
        "take": measured.metric.take,
        "counted": measured.counted,
        "printed": measured.printed,
        "at_least": measured.metric.at_least,
        "at_most": measured.metric.at_most,
        "missed": measured.missed_target,
        "reference": None if reference is None else reference.model_dump(),
        "share_of_reference": measured.share,
    }


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
