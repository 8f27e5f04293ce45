"""`train --matrix`: run every combination as a separate run, one after the other, on one cluster.

Each run is recorded before it is started. After an interruption, repeat the command to continue: it follows a run that
is still in progress, skips the combinations that have a result, and runs the missing ones.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloudgpu.app.matrix.outcome import MatrixOutcome, cluster_usd, find_row_run, matrix_outcome
from cloudgpu.app.matrix.planner import (
    MatrixProgress,
    MatrixRequest,
    PlannedRun,
    has_result,
    matrix_progress,
    train_request,
)
from cloudgpu.app.planning.planner import name_of_cluster
from cloudgpu.app.runs.attach import RunWatcher
from cloudgpu.app.runs.concurrency import delete_or_wait
from cloudgpu.app.runs.outcome import CLUSTER_DELETED, RunOutcome, lost_output_lines, remaining_cluster_line
from cloudgpu.app.runs.train import TrainingRun, check_feasible
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.existing_cluster import require_all_nodes_running
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, BusyError, CloudGpuError, LedgerError, StateError, UsageError
from cloudgpu.run.progress import Note, Stages
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.documents import write_durably
from cloudgpu.state.identifiers import new_run_id
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords, MatrixRow, RunRecord
from cloudgpu.text import command

_STOPS_ALL = (StateError, LedgerError, AuthError, BusyError)
"""Errors that would make every remaining combination fail as well."""
_INTERRUPTED = "interrupted"


class MatrixCluster:
    """Creates and deletes the cluster of one matrix."""

    def __init__(self, context: Context, matrices: MatrixRecords, requester: Requester) -> None:
        self._context = context
        self._matrices = matrices
        self._requester = requester

    def created(self, record: MatrixRecord) -> ClusterRecord | None:
        """Return the cluster that the matrix created, or None if it created no cluster or the cluster is deleted."""
        cluster = self._context.records.cluster(record.cluster) if record.made and record.cluster else None
        return cluster if cluster is not None and record.token in ("", cluster.identity.token) else None

    def up(self, record: MatrixRecord, request: MatrixRequest) -> MatrixRecord:
        """Create the cluster, or use a running cluster.

        Raises:
            UsageError: The requested cluster does not match the plan, or the matrix already created another cluster.
            NoCapacityError: No candidate has capacity.
            CloudGpuError: The cluster cannot be created. Its resources have been deleted, or the error names them.
        """
        plan, created = request.plan.lead.plan, self.created(record)
        if created is not None and request.train.cluster not in ("", created.name):
            message = f"matrix {record.name} already has cluster {created.name} in state {created.state}"
            raise UsageError(
                message, hint=f"omit --cluster, or run `{command('cloudgpu', 'down', created.name)}` first"
            )
        if created is not None and self._is_unusable(created):
            self._context.emit(
                Note(f"cluster {created.name} can no longer be used; deleting it and creating a new one")
            )
            record, created = self.end(record, created), None
        if created is not None and created.state == "up":
            self._context.emit(
                Note(f"using cluster {created.name}, which is running until {created.lifecycle.expires_at:%H:%M} UTC")
            )
            self._context.clusters.reuse(created.name, plan)
            return record
        name = created.name if created is not None else self.name(record, request)
        is_new = created is not None or self._context.records.cluster(name) is None
        # Record the ownership before the first API call. If this process is killed, a later command then deletes the
        # cluster.
        record = self._matrices.save(replace(record, cluster=name, made=is_new, token="" if is_new else record.token))
        provisioned = self._context.clusters.create(
            plan, name, self._requester, keep_on_failure=request.train.keep_on_failure, retry_s=request.train.retry_s
        )
        return self._matrices.save(replace(record, token=provisioned.record.identity.token))

    def name(self, record: MatrixRecord, request: MatrixRequest) -> str:
        """Return the name of the cluster on which the matrix runs, by default the matrix's own name."""
        found = name_of_cluster(
            self._context.records, self._context.clock, request.plan.lead.plan, request.train.cluster
        )
        return found or record.name

    def end(self, record: MatrixRecord, cluster: ClusterRecord) -> MatrixRecord:
        """Delete the cluster that the matrix created, and record its cost.

        Raises:
            CloudGpuError: The cluster cannot be deleted.
        """
        ended = delete_or_wait(self._context, cluster)
        token, now = cluster.identity.token, self._context.clock.now()
        # If another process deleted the cluster, that process recorded the cost in the ledger.
        usd = ended.usd if ended is not None else cluster_usd(self._context.ledger, cluster.name, token, now)
        return self._matrices.save(replace(record, spent={**(record.spent or {}), token: str(usd)}))

    def _is_unusable(self, cluster: ClusterRecord) -> bool:
        if cluster.state == "ending" or cluster.lifecycle.expires_at <= self._context.clock.now():
            return True
        if cluster.state != "up":
            return False
        try:
            require_all_nodes_running(self._context, cluster)
        except StateError as err:
            self._context.emit(Note(err.message))
            return True
        return False


@dataclass
class _InterruptPrompt:
    """The prompt after Ctrl-C, shown only once because the answer applies to both the run and the cluster."""

    ask: Callable[[str], bool]
    answer: bool | None = None

    def __call__(self, what: str) -> bool:
        if self.answer is None:
            self.answer = self.ask(what)
        return self.answer


class MatrixRunner:
    """Runs matrices on one backend and records them in one state home."""

    def __init__(self, context: Context, training: TrainingRun, requester: Requester) -> None:
        self._context = context
        self._training = training
        self._records = MatrixRecords(context.home)
        self._cluster = MatrixCluster(context, self._records, requester)

    def start_progress(self, request: MatrixRequest) -> MatrixProgress:
        """Return the recorded progress of a matrix without changing anything.

        Raises:
            StateError: The record cannot be read.
        """
        return matrix_progress(request, self._records.matrix, self._context.records, self._context.clock.now())

    def cluster_name(self, progress: MatrixProgress, request: MatrixRequest) -> str:
        """Return the name of the cluster that the runs would use."""
        created = self._cluster.created(progress.record)
        return created.name if created is not None else self._cluster.name(progress.record, request)

    def _check(self, request: MatrixRequest) -> None:
        """Check every combination before anything is launched."""
        checked: list[object] = []
        for run in request.plan.runs:
            recipe = run.plan.recipe
            queried_fields = (recipe.environment, recipe.data, recipe.checkpoint, recipe.outputs_to)
            if queried_fields in checked:
                check_feasible(run.plan, request.train.base)
            else:
                checked.append(queried_fields)
                self._training.check(train_request(request, run))

    def run(self, request: MatrixRequest) -> MatrixOutcome:
        """Run the missing combinations.

        Raises:
            BusyError: Another process is working on this matrix.
            CloudGpuError: An error affected every combination, or a run may still be running. The hint names the
                cluster that is still running, if any. A failed run does not raise an error.
        """
        progress = self.start_progress(request)
        if progress.missing:
            with Stages(self._context.clock, self._context.emit).stage("check data"):
                self._check(request)
        lease = ClusterLease(
            self._context.home.matrix(progress.record.name).lease, self._context.clock, self._context.owner
        )
        with lease.hold():
            return _Session(self._context, self._training, self._cluster, request, progress.record).run()


class _Session:
    """One command's execution of a matrix. The command holds the lease on the matrix."""

    def __init__(
        self,
        context: Context,
        training: TrainingRun,
        cluster: MatrixCluster,
        request: MatrixRequest,
        record: MatrixRecord,
    ) -> None:
        self._context = context
        self._training = training
        self._cluster = cluster
        self._request = request
        self._records = MatrixRecords(context.home)
        self._record = self._records.save(record)
        self._end_on_interrupt = _InterruptPrompt(request.train.delete_on_interrupt)
        self._interrupted = False
        self._unfetched: tuple[str, ...] = ()
        self._lost: tuple[str, ...] = ()

    def run(self) -> MatrixOutcome:
        try:
            try:
                stopped = self._run_missing()
            except KeyboardInterrupt:
                stopped = _INTERRUPTED
            return self._finished(stopped)
        except CloudGpuError as err:
            self._abandoned(err)
            raise

    def _run_missing(self) -> str:
        """Run the missing combinations. Return why some were not tried, or an empty string if all were tried."""
        missing = [run for run in self._request.plan.runs if not self._has_result(run)]
        if missing:
            with Stages(self._context.clock, self._context.emit).stage("provision"):
                self._record = self._cluster.up(self._record, self._request)
        for number, run in enumerate(missing, start=1):
            unusable = self._why_unusable()
            if unusable:
                return unusable
            self._context.emit(Note(f"combination {number} of {len(missing)}: {run.combination.label}"))
            succeeded = self._run_one(run)
            self._write_table()
            if self._interrupted:
                return _INTERRUPTED
            if not succeeded and self._request.fail_fast and number < len(missing):
                return "a combination failed, and --fail-fast is set"
        return ""

    def _run_one(self, run: PlannedRun) -> bool:
        """Run or follow one combination until it finishes. Return True if it succeeded."""
        in_progress = self._run_in_progress(run)
        try:
            outcome = self._attached(in_progress) if in_progress is not None else self._trained(run)
        except CloudGpuError as err:
            self._note_error(run, err)
            return False
        self._interrupted = outcome.interrupted
        run_id = outcome.record.run_id
        self._unfetched += tuple(f"run {run_id}: {line}" for line in outcome.unfetched)
        self._lost += tuple(f"run {run_id}: {line}" for line in outcome.lost)
        return outcome.record.state in ("succeeded", "not-run")

    def _trained(self, run: PlannedRun) -> RunOutcome:
        run_id = new_run_id(run.plan.recipe.name)
        self._save_row(MatrixRow(run.combination.values, run.combination.digest, run_id))
        request = train_request(self._request, run)
        return self._training.train(
            replace(request, cluster=self._record.cluster, delete_on_interrupt=self._end_on_interrupt, run_id=run_id)
        )

    def _attached(self, record: RunRecord) -> RunOutcome:
        self._context.emit(Note(f"run {record.run_id} is already in progress; following it"))
        watching = RunWatcher(self._context)
        try:
            return watching.attach(record.run_id)
        except KeyboardInterrupt:
            return replace(RunOutcome(record, self._record.simulated), interrupted=True)

    def _run_in_progress(self, run: PlannedRun) -> RunRecord | None:
        """Return the combination's unfinished run, or None if a new run is needed."""
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        known = find_row_run(row, self._context.records)
        if known is None or known.ended_at is not None:
            return None
        if not known.ranks or self._context.records.cluster(known.cluster) is None:
            self._closed(known)
            return None
        if row.digest != run.combination.digest and not known.judged:
            message = f"run {known.run_id} is still in progress with a previous version of the recipe"
            finish, cancel = (command("cloudgpu", verb, known.run_id) for verb in ("attach", "cancel"))
            raise StateError(message, hint=f"run `{finish}` or `{cancel}` first")
        return known

    def _closed(self, known: RunRecord) -> None:
        """Close a run whose command was killed before it started a rank, or whose cluster was deleted."""
        self._lost += lost_output_lines(known, CLUSTER_DELETED)
        now = self._context.clock.now()
        ended = known if known.judged else replace(known, state="interrupted", reason="its command was killed")
        self._context.records.save_run(replace(ended, ended_at=now))
        self._context.ledger.run_ended(known.run_id, ended.state, now)

    def _note_error(self, run: PlannedRun, err: CloudGpuError) -> None:
        """Record the error as the result of this combination if it does not affect the other combinations."""
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        known = find_row_run(row, self._context.records)
        if isinstance(err, _STOPS_ALL) or (known is not None and known.ranks and known.ended_at is None):
            raise err
        self._context.emit(Note(f"{run.combination.label} failed: {err.message}"))
        if known is None:
            self._save_row(replace(row, reason=err.message))

    def _why_unusable(self) -> str:
        """Return why no more runs can be started on the cluster, or an empty string. Warn if little time is left."""
        cluster = self._context.records.cluster(self._record.cluster)
        if cluster is None or cluster.state != "up":
            return f"cluster {self._record.cluster} was deleted in the meantime"
        left_s = (cluster.lifecycle.expires_at - self._context.clock.now()).total_seconds()
        if left_s <= 0:
            return f"cluster {cluster.name} has expired"
        longest = max((row.seconds or 0.0 for row in self._outcome().rows), default=0.0)
        if left_s < longest:
            warning = f"cluster {cluster.name} has {left_s / 60:.0f} min left, but the longest run so far took"
            extend = command("cloudgpu", "extend", cluster.name)
            self._context.emit(Note(f"{warning} {longest / 60:.0f} min; extend it with `{extend}`"))
        return ""

    def _finished(self, stopped: str) -> MatrixOutcome:
        """Delete the cluster unless it must be kept, and return the outcome."""
        created = self._cluster.created(self._record)
        kept = self._why_kept(stopped) if created is not None else ""
        unended: CloudGpuError | None = None
        if created is not None and not kept:
            try:
                with Stages(self._context.clock, self._context.emit).stage("down"):
                    self._record = self._cluster.end(self._record, created)
            except CloudGpuError as err:
                unended = err
        outcome = replace(
            self._write_table(),
            kept=kept,
            stopped=stopped,
            interrupted=stopped == _INTERRUPTED,
            unfetched=self._unfetched,
            lost=self._lost,
        )
        if created is not None and kept:
            return replace(outcome, left=(remaining_cluster_line(created),))
        if created is not None and unended is not None:
            left = tuple(getattr(unended, "left", ())) or (remaining_cluster_line(created),)
            return replace(outcome, unended=unended.message, left=left)
        return outcome

    def _why_kept(self, stopped: str) -> str:
        failed = any(row.state not in ("succeeded", "not-run", "waiting") for row in self._outcome().rows)
        created = self._cluster.created(self._record)
        if stopped == _INTERRUPTED:
            running = f"cluster {self._record.cluster}"
            return "" if self._end_on_interrupt(running) else "interrupted; the cluster is unchanged"
        if self._unfetched and created is not None:
            return "outputs could not be downloaded"
        if self._request.train.keep:
            return "--keep"
        return "--keep-on-failure" if self._request.train.keep_on_failure and failed else ""

    def _abandoned(self, err: CloudGpuError) -> None:
        """Add to the error's hint how to continue and which cluster is still running."""
        err.hint = "; ".join(
            part for part in (err.hint, "run the same command again to continue with the missing combinations") if part
        )
        with contextlib.suppress(CloudGpuError):
            created = self._cluster.created(self._record)
            left = () if created is None else (remaining_cluster_line(created),)
            if created is not None:
                err.hint += f"; {remaining_cluster_line(created)}"
            err.partial_result = replace(self._write_table(), stopped=err.message, left=left).as_json()

    def _has_result(self, run: PlannedRun) -> bool:
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        return has_result(row, run, self._context.records)

    def _save_row(self, row: MatrixRow) -> None:
        self._record = self._records.save(self._record.with_row(row))

    def _outcome(self) -> MatrixOutcome:
        path = self._context.home.matrix(self._record.name).table
        return matrix_outcome(
            self._record, self._context.records, self._context.ledger, self._context.clock.now(), str(path)
        )

    def _write_table(self) -> MatrixOutcome:
        outcome = self._outcome()
        write_durably(self._context.home.matrix(self._record.name).table, outcome.as_csv())
        return outcome
