"""What a `train` comes to: one frozen value that the last panel and `--json` are rendered from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from cloudgpu.app.records import RunRecord
from cloudgpu.run.metrics import Measured


@dataclass(frozen=True)
class RunOutcome:
    """One run, ended or left running.

    Attributes:
        usd: What the run cost, or would have cost where `simulated`.
        left: What is still running, one line each; empty when nothing is.
        kept: Why the cluster was left, empty when it was ended or is not this run's to end.
        logs: Directory of the ranks' logs on this machine.
    """

    record: RunRecord
    simulated: bool
    measured: tuple[Measured, ...] = ()
    usd: Decimal = Decimal(0)
    nodes: int = 0
    instance_type: str = ""
    zone: str = ""
    tried: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    kept: str = ""
    logs: str = ""
    outputs: str = ""
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stage_details: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """All stages together."""
        return round(sum(seconds for _, seconds in self.record.stages), 3)

    def as_json(self) -> dict[str, Any]:
        """The documented `train --json` form."""
        record = self.record
        return {
            "run_id": record.run_id,
            "cluster": record.cluster,
            "recipe": record.recipe,
            "recipe_digest": record.recipe_digest,
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
            "metrics": {one.name: metric_json(one) for one in self.measured},
            "cost": {"usd": str(self.usd), "simulated": self.simulated},
            "tried": list(self.tried),
            "outputs": {"directory": self.outputs, "files": list(record.outputs)},
            "logs": self.logs,
            "tail": list(self.tail),
            "left": list(self.left),
            "kept": self.kept,
        }


def metric_json(measured: Measured) -> dict[str, Any]:
    """One metric: value and unit, the reference with its source, and the share of it that was reached."""
    reference = measured.metric.reference
    return {
        "value": measured.value,
        "unit": measured.metric.unit,
        "better": measured.metric.better,
        "at_least": measured.metric.at_least,
        "missed": measured.missed,
        "reference": None if reference is None else reference.model_dump(),
        "share_of_reference": measured.share,
    }
