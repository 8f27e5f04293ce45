"""The options of `train --matrix`, and the recorded progress of the matrix."""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cloudgpu.app.matrix.outcome import find_row_run
from cloudgpu.app.matrix.planner import MatrixPlan, PlannedRun
from cloudgpu.app.runs.busy_nodes import Sharing
from cloudgpu.app.runs.train import TrainRequest
from cloudgpu.state.matrix_records import MatrixRecord, MatrixRow
from cloudgpu.state.record_store import RecordStore

_LONGEST = 32
"""Maximum length of the recipe name in a matrix name, which a dash and a digest extend to at most 39 characters."""
_RECENT_RUNS = 9
"""Number of runs from which the typical duration is estimated."""


@dataclass(frozen=True)
class MatrixRequest:
    """The options of `train --matrix`. `TrainRequest` describes the options that are not listed here.

    Attributes:
        sets: `--set` assignments shared by all combinations, as typed.
        fail_fast: Whether to start no further runs after a failure.
        again: Whether to repeat combinations that already have a result.
    """

    plan: MatrixPlan
    recipe_path: Path
    base: Path
    sets: tuple[str, ...] = ()
    cluster: str = ""
    keep: bool = False
    keep_on_failure: bool = False
    fail_fast: bool = False
    again: bool = False
    retry_s: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    delete_on_interrupt: Callable[[str], bool] = lambda _what: False
    sharing: Sharing = "refuse"
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class MatrixProgress:
    """The progress of a matrix before the command starts.

    Attributes:
        record: The stored record, or a new one that is not written yet.
        missing: The combinations that would run now.
        changed: The missing combinations that have a result from a previous version of the recipe.
        typical_s: Median duration in seconds of the latest successful runs of this recipe on this target; None without
            such runs.
    """

    record: MatrixRecord
    missing: tuple[PlannedRun, ...]
    changed: tuple[PlannedRun, ...]
    typical_s: float | None = None

    @property
    def done(self) -> int:
        """Number of combinations that have a result."""
        return len(self.record.rows) - len(self.missing)


def matrix_progress(
    request: MatrixRequest, stored: Callable[[str], MatrixRecord | None], records: RecordStore, now: datetime
) -> MatrixProgress:
    """Return the progress of the requested matrix, from its record if there is one, without writing anything.

    Raises:
        StateError: The record cannot be read.
    """
    plan = request.plan
    fresh = _new_record(request, now)
    record = stored(fresh.name) or fresh
    if request.again:
        record = replace(record, rows=tuple(_without_result(row, records) for row in record.rows))
    rows = {row.values: row for row in record.rows}
    missing = tuple(run for run in plan.runs if not has_result(rows[run.combination.values], run, records))
    changed = tuple(run for run in missing if _is_outdated(rows[run.combination.values], run, records))
    return MatrixProgress(record, missing, changed, _typical_s(record, records))


def _typical_s(record: MatrixRecord, records: RecordStore) -> float | None:
    recent = [run for run in records.runs() if (run.recipe, run.target) == (record.recipe, record.target)]
    durations = [
        (run.ended_at - run.started_at).total_seconds()
        for run in recent
        if run.state == "succeeded" and run.ended_at is not None
    ]
    return statistics.median(durations[-_RECENT_RUNS:]) if durations else None


def train_request(request: MatrixRequest, run: PlannedRun) -> TrainRequest:
    """Return the `train` request for one combination."""
    values = (word for name, value in run.combination.values for word in ("--set", f"{name}={value}"))
    return TrainRequest(
        run.plan,
        request.recipe_path,
        request.base,
        environ=request.environ,
        sharing=request.sharing,
        options=(*request.options, *values),
    )


def has_result(row: MatrixRow, run: PlannedRun, records: RecordStore) -> bool:
    """Return True if the row's run is closed as `succeeded` or `not-run` and used this version of the recipe."""
    known = find_row_run(row, records)
    succeeded = known is not None and known.state in ("succeeded", "not-run") and known.ended_at is not None
    return succeeded and row.digest == run.combination.digest


def _without_result(row: MatrixRow, records: RecordStore) -> MatrixRow:
    """Return the row without its run, or the unchanged row if its run is unfinished and must still be followed."""
    known = find_row_run(row, records)
    return row if known is not None and known.ended_at is None else MatrixRow(row.values)


def _is_outdated(row: MatrixRow, run: PlannedRun, records: RecordStore) -> bool:
    known = find_row_run(row, records)
    return known is not None and known.state == "succeeded" and row.digest != run.combination.digest


def _new_record(request: MatrixRequest, now: datetime) -> MatrixRecord:
    plan, recipe = request.plan, request.plan.lead.plan.recipe
    axes = tuple((axis.name, axis.values) for axis in plan.axes)
    path = str(request.recipe_path.resolve())
    return MatrixRecord(
        name=_name(recipe.name, [path, plan.lead.plan.target, axes, sorted(request.sets)]),
        recipe=recipe.name,
        recipe_path=path,
        target=plan.lead.plan.target,
        axes=axes,
        sets=request.sets,
        created_at=now,
        rows=tuple(MatrixRow(run.combination.values) for run in plan.runs),
    )


def _name(recipe: str, inputs: Sequence[object]) -> str:
    """Derive the matrix name from the inputs, so that repeating the command finds the same matrix."""
    digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:6]
    return f"{recipe[:_LONGEST].rstrip('-')}-{digest}"
