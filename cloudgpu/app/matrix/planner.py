"""Plan a matrix: read its options and recorded progress, and find one cluster on which every combination can run."""

import hashlib
import json
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from cloudgpu.app.matrix.outcome import find_row_run
from cloudgpu.app.planning.planner import Planned
from cloudgpu.app.runs.train import TrainRequest
from cloudgpu.errors import CloudGpuError, PlanError, UsageError
from cloudgpu.plan import planner
from cloudgpu.plan.plan import Finding, Plan
from cloudgpu.recipe.loader import LoadedRecipe
from cloudgpu.recipe.matrix import Axis, Combination, axis_fields, label_combinations
from cloudgpu.recipe.schema import Recipe
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import MatrixRecord, MatrixRow
from cloudgpu.text import command

_OF_THE_CLUSTER: Final = frozenset({"schema", "name", "resources", "storage", "budget"})
"""Recipe sections that describe the cluster rather than what runs on it."""
_NETWORK: Final = ("resources", "network")
_NETWORKS: Final = ("tcp", "auto", "efa")
"""Network options, least demanding first. A cluster with EFA can also run combinations that use TCP."""
_LONGEST = 32
"""Maximum length of the recipe name in a matrix name, which a dash and a digest extend to at most 39 characters."""
_RECENT_RUNS = 9
"""Number of runs from which the typical duration is estimated."""


@dataclass(frozen=True)
class PlannedRun:
    """A combination and its plan."""

    combination: Combination
    plan: Plan


@dataclass(frozen=True)
class MatrixPlan:
    """The plan of a matrix.

    Attributes:
        lead: Plan from which the cluster is created: the plan of the most demanding combination, limited to the
            candidates on which all combinations can run.
        runs: Every combination, in the order in which they run.
    """

    lead: Planned
    axes: tuple[Axis, ...]
    runs: tuple[PlannedRun, ...]

    @property
    def expected_s(self) -> int | None:
        """Expected duration of all runs in seconds at the reference rates, or None if unknown for any run."""
        expected = [run.plan.expected for run in self.runs]
        return sum(duration.seconds for duration in expected if duration is not None) if all(expected) else None

    @property
    def further_findings(self) -> list[tuple[str, Finding]]:
        """Findings that the lead plan lacks, each preceded by the labels of the combinations that it applies to."""
        shown = {(finding.check, finding.message) for finding in self.lead.plan.findings}
        return [
            (labels, finding)
            for labels, finding in _grouped(self.runs)
            if (finding.check, finding.message) not in shown
        ]


def plan_matrix(
    loaded: LoadedRecipe,
    axes: Sequence[Axis],
    combinations: Sequence[Combination],
    ask: Callable[[Combination], Planned],
) -> MatrixPlan:
    """Plan every combination. `ask` plans one combination by querying the cloud.

    Raises:
        UsageError: An axis would require different clusters, or a combination runs a service.
        PlanError: A combination cannot run as planned; the error contains the findings of all combinations.
        CloudGpuError: The cloud cannot be queried.
    """
    _check_one_cluster(loaded, axes)
    _refuse_services(combinations)
    most_demanding = max(combinations, key=lambda combination: _NETWORKS.index(combination.recipe.resources.network))
    lead = ask(most_demanding)
    runs = tuple(
        PlannedRun(combination, lead.plan if combination is most_demanding else _plan(combination, lead, ask))
        for combination in combinations
    )
    _refuse(loaded.recipe.name, axes, runs)
    candidates = tuple(
        candidate for candidate in lead.plan.candidates if all(_can_run(run.plan, candidate.key) for run in runs)
    )
    types = {candidate.instance_type for candidate in candidates}
    if not candidates or len({_software(run.plan, types) for run in runs}) > 1:
        raise _no_common_cluster(loaded.recipe.name, axes, runs)
    return MatrixPlan(replace(lead, plan=replace(lead.plan, candidates=candidates)), tuple(axes), runs)


def _check_one_cluster(loaded: LoadedRecipe, axes: Sequence[Axis]) -> None:
    for axis, path in axis_fields(axes, loaded):
        if path[0] in _OF_THE_CLUSTER and path != _NETWORK:
            name = ".".join(map(str, path))
            message = f"--matrix {axis.name}: {name} changes the cluster itself, but a matrix runs in one cluster"
            raise UsageError(message, hint=_separate_clusters_hint(loaded.recipe.name, axis, axes))


def _refuse_services(combinations: Sequence[Combination]) -> None:
    for combination in combinations:
        if combination.recipe.launch.launcher == "service":
            message = (
                f"{combination.label}: a service runs until it is stopped, so the next combination would not start"
            )
            raise UsageError(message, hint="run `cloudgpu train` without --matrix once per combination")


def _separate_clusters_hint(recipe: str, axis: Axis, axes: Sequence[Axis]) -> str:
    """Suggest one command per value of an axis, with the other axes unchanged."""
    others = [
        word for other in axes if other is not axis for word in ("--matrix", f"{other.name}={','.join(other.values)}")
    ]
    commands = [command("cloudgpu", "train", recipe, "--set", f"{axis.name}={value}", *others) for value in axis.values]
    return f"use one cluster per value: {', then '.join(f'`{line}`' for line in commands)}"


def _plan(combination: Combination, lead: Planned, ask: Callable[[Combination], Planned]) -> Plan:
    """Plan a combination. Reuse the cloud's responses for the lead plan if the queries would be the same."""
    if _queried_fields(combination.recipe) == _queried_fields(lead.inputs.recipe):
        return planner.build_plan(replace(lead.inputs, recipe=combination.recipe))
    return ask(combination).plan


def _queried_fields(recipe: Recipe) -> tuple[object, ...]:
    """Return the parts of a recipe that affect the cloud queries and may differ between combinations."""
    uploads = (recipe.checkpoint, recipe.outputs_to)
    return (recipe.environment, recipe.data, recipe.storage, uploads, recipe.workdir)


def _refuse(recipe: str, axes: Sequence[Axis], runs: Sequence[PlannedRun]) -> None:
    errors = [(labels, finding) for labels, finding in _grouped(runs) if finding.severity == "error"]
    if errors:
        lines = [
            f"{labels}: {f.check}: {f.message}{f' (fix: {f.first_fix})' if f.first_fix else ''}" for labels, f in errors
        ]
        message = f"recipe {recipe} cannot run with every combination of this matrix"
        # A fix that sets the value of an axis does not fix the matrix, so only the finding shows it, not the hint.
        cures = [finding.first_fix for _, finding in errors if finding.first_fix]
        alternative = next((cure for cure in cures if not any(f"{axis.name}=" in cure for axis in axes)), "")
        raise PlanError(
            message,
            findings=lines,
            hint=f"omit the failing values{f', or {alternative}' if alternative else ''}",
        )


def _grouped(runs: Sequence[PlannedRun]) -> list[tuple[str, Finding]]:
    """Return each distinct finding with the combinations that it applies to."""
    labels: dict[tuple[str, str], list[str]] = {}
    findings: dict[tuple[str, str], Finding] = {}
    for run in runs:
        for finding in run.plan.findings:
            findings.setdefault((finding.check, finding.message), finding)
            labels.setdefault((finding.check, finding.message), []).append(run.combination.label)
    return [(label_combinations(labels[key], len(runs)), finding) for key, finding in findings.items()]


def _can_run(plan: Plan, key: tuple[str, str, str]) -> bool:
    return any(candidate.key == key for candidate in plan.candidates)


def _software(plan: Plan, types: Collection[str]) -> frozenset[tuple[str, str, str]]:
    """Return the image and driver for each of these instance types."""
    return frozenset((use.instance_type, use.image, use.driver) for use in plan.uses if use.instance_type in types)


def _no_common_cluster(recipe: str, axes: Sequence[Axis], runs: Sequence[PlannedRun]) -> CloudGpuError:
    lines = []
    for run in runs:
        uses = [
            f"{use.instance_type} with image {use.image}, driver {use.driver or 'unknown'}" for use in run.plan.uses
        ]
        lines.append(f"{run.combination.label}: {'; '.join(uses)}")
    message = f"recipe {recipe}: the combinations of this matrix need different nodes, but a matrix runs in one cluster"
    return PlanError(message, findings=lines, hint=_separate_clusters_hint(recipe, axes[0], axes))


@dataclass(frozen=True)
class MatrixRequest:
    """The options of `train --matrix`.

    Attributes:
        train: The options that `train` also has, with the lead plan.
        sets: `--set` assignments shared by all combinations, as typed.
        fail_fast: Whether to start no further runs after a failure.
        again: Whether to repeat combinations that already have a result.
    """

    plan: MatrixPlan
    train: TrainRequest
    sets: tuple[str, ...] = ()
    fail_fast: bool = False
    again: bool = False


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
    """Return the `train` request for one combination. Only the matrix creates, keeps and deletes the cluster."""
    values = (word for name, value in run.combination.values for word in ("--set", f"{name}={value}"))
    return replace(
        request.train,
        plan=run.plan,
        cluster="",
        keep=False,
        keep_on_failure=False,
        retry_s=0,
        delete_unstarted=None,
        options=(*request.train.options, *values),
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
    path = str(request.train.recipe_path.resolve())
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
