"""Build the outcome of a matrix: the state and metrics of every combination, and the best value of each metric."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from cloudgpu.backends.billing.cluster_billing import rows_of
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.errors import StateError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.recipe.matrix import format_values
from cloudgpu.run.job import recipe_of
from cloudgpu.run.metrics import Measured
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import MatrixRecord, MatrixRow, RunRecord, Values

_WAITING = "waiting"
_FEWEST = 2
"""Minimum number of values that a metric must have before its best value is marked."""


@dataclass(frozen=True)
class RowOutcome:
    """The outcome of one combination.

    Attributes:
        state: State of the combination's latest run. Without a run: `failed` if an error prevented the run, otherwise
            `waiting`.
        reason: Reason for the state, or empty.
        run_id: ID of the latest run, or empty.
        seconds: Duration of the run, or None until it finishes.
        usd: Cost of the latest run.
        best: Metrics for which no other combination has a better value.
    """

    values: Values
    state: str
    reason: str = ""
    run_id: str = ""
    digest: str = ""
    measured: tuple[Measured, ...] = ()
    seconds: float | None = None
    usd: Decimal = Decimal(0)
    best: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """Value of each axis, for example `kvstore=dist_sync compression=2bit`."""
        return format_values(self.values)

    @property
    def has_result(self) -> bool:
        """Whether the run succeeded, or was skipped as `not-run` because a rehearsal cannot run its container."""
        return self.state in ("succeeded", "not-run")

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {
            "values": dict(self.values),
            "state": self.state,
            "reason": self.reason,
            "run_id": self.run_id,
            "recipe_digest": self.digest,
            "metrics": {metric.name: self._metric(metric) for metric in self.measured},
            "seconds": self.seconds,
            "usd": str(self.usd),
        }

    def _metric(self, measured: Measured) -> dict[str, Any]:
        reference = measured.metric.reference
        return {
            "value": measured.value,
            "unit": measured.metric.unit,
            "better": measured.metric.better,
            "best": measured.name in self.best,
            "reference": None if reference is None else reference.model_dump(),
            "share_of_reference": measured.share,
        }


@dataclass(frozen=True)
class MatrixOutcome:
    """The current state of a matrix.

    Attributes:
        usd: Cost so far of the clusters that the matrix created or, if it created none, of its runs.
        table: Path of the CSV file that lists the combinations.
        kept: Reason why the cluster was kept; empty if it was deleted or the matrix did not create it.
        stopped: Reason why some combinations were not tried; empty if all were tried.
        left: Resources that are still running, one line each.
        unended: Reason why the cluster could not be deleted, or empty.
        interrupted: Whether Ctrl-C interrupted the command.
        unfetched: Outputs that are still on the nodes, one line each, with the run ID.
        lost: Outputs that can no longer be downloaded, one line each, with the run ID.
    """

    record: MatrixRecord
    rows: tuple[RowOutcome, ...]
    usd: Decimal
    table: str
    kept: str = ""
    stopped: str = ""
    left: tuple[str, ...] = ()
    unended: str = ""
    interrupted: bool = False
    unfetched: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all metrics, in the order of the recipe."""
        return tuple(dict.fromkeys(metric.name for row in self.rows for metric in row.measured))

    @property
    def complete(self) -> bool:
        """Whether every combination has a result."""
        return all(row.has_result for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return the documented form of `train --matrix --json` and `matrix show --json`."""
        record = self.record
        return {
            "matrix": record.name,
            "recipe": record.recipe,
            "target": record.target,
            "simulated": record.simulated,
            "axes": [{"name": name, "values": list(values)} for name, values in record.axes],
            "sets": list(record.sets),
            "complete": self.complete,
            "cluster": record.cluster,
            "combinations": [row.as_json() for row in self.rows],
            "cost": {"usd": str(self.usd), "simulated": record.simulated},
            "table": self.table,
            "kept": self.kept,
            "stopped": self.stopped,
            "left": list(self.left),
            "unended": self.unended,
            "interrupted": self.interrupted,
            "unfetched": list(self.unfetched),
            "lost": list(self.lost),
        }

    def as_csv(self) -> str:
        """Return the CSV table, one line per combination; unknown values are empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self._headings())
        for row in self.rows:
            writer.writerow(self._cells(row))
        return text.getvalue()

    def _headings(self) -> list[str]:
        metric_headings = [heading for name in self.metrics for heading in (name, f"{name}_share_of_reference")]
        axes = [name for name, _ in self.record.axes]
        return [*axes, "state", *metric_headings, "seconds", "usd", "simulated", "run_id", "recipe_digest", "reason"]

    def _cells(self, row: RowOutcome) -> Iterator[object]:
        by_name = {metric.name: metric for metric in row.measured}
        yield from (value for _, value in row.values)
        yield row.state
        for name in self.metrics:
            metric = by_name.get(name)
            yield "" if metric is None or metric.value is None else metric.value
            yield "" if metric is None or metric.share is None else round(metric.share, 4)
        yield "" if row.seconds is None else row.seconds
        yield from (row.usd, str(self.record.simulated).lower(), row.run_id, row.digest, row.reason)


def matrix_outcome(
    record: MatrixRecord, records: RecordStore, ledger: CostLedger, now: datetime, table: str
) -> MatrixOutcome:
    """Return the current state of a matrix from the records and the ledger.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    bill = ledger.report(by="run", now=now)
    costs = {row.key: row.usd for row in bill.rows if row.simulated is record.simulated}
    rows = tuple(_row(row, records, costs) for row in record.rows)
    usd = _clusters_usd(record, ledger, now) if record.made or record.spent else sum((r.usd for r in rows), Decimal(0))
    return MatrixOutcome(record, _with_best(rows), usd, table)


def find_row_run(row: MatrixRow, records: RecordStore) -> RunRecord | None:
    """Return the run of a combination, or None if it was never started or its record is unreadable."""
    try:
        return records.run(row.run_id) if row.run_id else None
    except StateError:
        return None


def _row(row: MatrixRow, records: RecordStore, costs: Mapping[str, Decimal]) -> RowOutcome:
    run = find_row_run(row, records)
    if run is None:
        return RowOutcome(row.values, "failed" if row.reason else _WAITING, row.reason)
    duration_s = None if run.ended_at is None else round((run.ended_at - run.started_at).total_seconds(), 3)
    return RowOutcome(
        values=row.values,
        state=run.state,
        reason=run.reason,
        run_id=run.run_id,
        digest=row.digest,
        measured=_measured(run),
        seconds=duration_s,
        usd=costs.get(run.run_id, Decimal(0)),
    )


def _measured(run: RunRecord) -> tuple[Measured, ...]:
    metrics = recipe_of(run).metrics
    return tuple(Measured(name, run.metrics.get(name), metric) for name, metric in metrics.items())


def _clusters_usd(record: MatrixRecord, ledger: CostLedger, now: datetime) -> Decimal:
    ended = sum((Decimal(usd) for usd in (record.spent or {}).values()), Decimal(0))
    if not record.token or record.token in (record.spent or {}):
        return ended
    return ended + cluster_usd(ledger, record.cluster, record.token, now)


def cluster_usd(ledger: CostLedger, name: str, token: str, now: datetime) -> Decimal:
    """Return the cost of a cluster according to the ledger. Other clusters may have had the same name."""
    return sum((entry_usd(row, now) for row in rows_of(ledger, name, token)), Decimal(0))


def _with_best(rows: Sequence[RowOutcome]) -> tuple[RowOutcome, ...]:
    """Mark the best value of each metric among the combinations that succeeded."""
    values: dict[str, list[tuple[float, int]]] = {}
    better: dict[str, str] = {}
    for index, row in enumerate(rows):
        for metric in row.measured if row.state == "succeeded" else ():
            if metric.value is not None and isfinite(metric.value):
                values.setdefault(metric.name, []).append((metric.value, index))
                better[metric.name] = metric.metric.better
    best: dict[int, set[str]] = {}
    for name, of_metric in values.items():
        top = (max if better[name] == "higher" else min)(value for value, _ in of_metric)
        for value, index in of_metric:
            if value == top and len(of_metric) >= _FEWEST:
                best.setdefault(index, set()).add(name)
    return tuple(replace(row, best=frozenset(best.get(index, ()))) for index, row in enumerate(rows))
