"""The request of `train --matrix`, and which of its combinations already have results."""

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from cloudgpu.app.matrix.outcome import known_run
from cloudgpu.app.matrix.planner import MatrixPlan, PlannedRun
from cloudgpu.app.runs.train import TrainRequest
from cloudgpu.state.matrix_records import MatrixRecord, MatrixRow
from cloudgpu.state.records import Records

_LONGEST = 32
"""Of a recipe's name in a name that is a cluster's too: 39 characters at most, with a dash and six of the matrix's."""
_LATELY = 9
"""Runs that tell how long one takes."""


@dataclass(frozen=True)
class MatrixRequest:
    """A matrix as requested; see `TrainRequest`.

    Attributes:
        sets: Assignments that all combinations share, as typed.
        fail_fast: Start no further run after a failed one.
        again: Also run combinations that already have a result.
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
    end_on_interrupt: Callable[[str], bool] = lambda _what: False


@dataclass(frozen=True)
class Beginning:
    """The state of a matrix before the command starts.

    Attributes:
        record: The stored record, or a new one that is not written yet.
        missing: Combinations to run now.
        changed: Those among them with a result from an older version of the recipe.
        typical_s: Duration of recent runs of this recipe on this target, seconds; None if there are none.
    """

    record: MatrixRecord
    missing: tuple[PlannedRun, ...]
    changed: tuple[PlannedRun, ...]
    typical_s: float | None = None

    @property
    def done(self) -> int:
        """Number of combinations with a result."""
        return len(self.record.rows) - len(self.missing)


def beginning(
    request: MatrixRequest, stored: Callable[[str], MatrixRecord | None], records: Records, now: datetime
) -> Beginning:
    """Find the matrix of this request among those of the home, or begin it; nothing is written.

    Raises:
        StateError: Its record cannot be read.
    """
    plan = request.plan
    fresh = _fresh(request, now)
    record = stored(fresh.name) or fresh
    if request.again:
        record = replace(record, rows=tuple(_anew(row, records) for row in record.rows))
    rows = {row.values: row for row in record.rows}
    missing = tuple(run for run in plan.runs if not has_result(rows[run.combination.values], run, records))
    changed = tuple(run for run in missing if _of_another_recipe(rows[run.combination.values], run, records))
    return Beginning(record, missing, changed, _typical_s(record, records))


def _typical_s(record: MatrixRecord, records: Records) -> float | None:
    lately = [run for run in records.runs() if (run.recipe, run.target) == (record.recipe, record.target)]
    took = [
        (run.ended_at - run.started_at).total_seconds()
        for run in lately
        if run.state == "succeeded" and run.ended_at is not None
    ]
    return statistics.median(took[-_LATELY:]) if took else None


def train_request(request: MatrixRequest, run: PlannedRun) -> TrainRequest:
    """Return the request for `train` that runs one combination."""
    return TrainRequest(run.plan, request.recipe_path, request.base, environ=request.environ)


def has_result(row: MatrixRow, run: PlannedRun, records: Records) -> bool:
    """Return True if this version of the recipe ran successfully and its outputs are complete."""
    known = known_run(row, records)
    good = known is not None and known.state in ("succeeded", "not-run") and known.ended_at is not None
    return good and row.digest == run.combination.digest


def _anew(row: MatrixRow, records: Records) -> MatrixRow:
    """Return the combination without its result. A run that has not ended is kept, because it must be followed."""
    known = known_run(row, records)
    return row if known is not None and known.ended_at is None else MatrixRow(row.values)


def _of_another_recipe(row: MatrixRow, run: PlannedRun, records: Records) -> bool:
    known = known_run(row, records)
    return known is not None and known.state == "succeeded" and row.digest != run.combination.digest


def _fresh(request: MatrixRequest, now: datetime) -> MatrixRecord:
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


def _name(recipe: str, what: Sequence[object]) -> str:
    """Return a name derived from the command, so that the same command finds the same matrix."""
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:6]
    return f"{recipe[:_LONGEST].rstrip('-')}-{digest}"
