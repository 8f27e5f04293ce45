"""The outcome of `train`, from which the summary panel and `--json` are rendered."""

from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any

from cloudgpu.run.metrics import Measured
from cloudgpu.state.run_record import RunRecord

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
    def tried(self) -> tuple[str, ...]:
        """One line for each candidate that was tried and could not be launched."""
        return self.record.tried

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
