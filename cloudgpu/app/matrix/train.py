"""`train --matrix`: run every combination, one after the other, in one cluster.

The run of a combination is recorded before it starts. After a kill, the same command continues: it follows a run that
is still running, skips combinations with a result, and runs the others.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from cloudgpu.app.clusters.factory import cluster_creator
from cloudgpu.app.matrix.cluster import MatrixCluster
from cloudgpu.app.matrix.outcome import MatrixOutcome, known_run, outcome_of
from cloudgpu.app.matrix.planner import PlannedRun
from cloudgpu.app.matrix.request import Beginning, MatrixRequest, beginning, has_result, train_request
from cloudgpu.app.planning.feasibility import check_feasible
from cloudgpu.app.runs.attach import Watching
from cloudgpu.app.runs.outcome import CLUSTER_DELETED, RunOutcome, never_fetched
from cloudgpu.app.runs.stages import Stages
from cloudgpu.app.runs.summary import still_up
from cloudgpu.app.runs.train import Training
from cloudgpu.backends.base import Connect
from cloudgpu.backends.context import Context
from cloudgpu.backends.launch_request import Requester
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import AuthError, BusyError, CloudGpuError, LedgerError, StateError
from cloudgpu.run.progress import Note
from cloudgpu.state.identifiers import new_run_id
from cloudgpu.state.matrix_records import MatrixRecord, MatrixRecords, MatrixRow
from cloudgpu.state.records import RunRecord, write_durably
from cloudgpu.text import command

_EVERY_ONE = (StateError, LedgerError, AuthError, BusyError)
"""What the next combination would end with too."""
_INTERRUPTED = "interrupted"


@dataclass
class _Asked:
    """Asks what Ctrl-C should do, once for both the run and the cluster."""

    ask: Callable[[str], bool]
    answer: bool | None = None

    def __call__(self, what: str) -> bool:
        if self.answer is None:
            self.answer = self.ask(what)
        return self.answer


class Matrices:
    """Runs matrices in one cloud for one home directory."""

    def __init__(self, context: Context, training: Training, requester: Requester, connect: Connect) -> None:
        self._context = context
        self._connect = connect
        self._training = training
        self._records = MatrixRecords(context.home)
        self._cluster = MatrixCluster(context, self._records, cluster_creator(context, requester))

    def beginning(self, request: MatrixRequest) -> Beginning:
        """Return the state of the matrix without changing anything.

        Raises:
            StateError: Its record cannot be read.
        """
        return beginning(request, self._records.matrix, self._context.records, self._context.clock.now())

    def cluster_name(self, begun: Beginning, request: MatrixRequest) -> str:
        """Return the cluster that the runs would use."""
        own = self._cluster.own(begun.record)
        return own.name if own is not None else self._cluster.name(begun.record, request)

    def _check(self, request: MatrixRequest) -> None:
        """Find out what would fail later, before anything is bought for it."""
        seen: list[object] = []
        for run in request.plan.runs:
            recipe = run.plan.recipe
            asked_about = (recipe.environment, recipe.data, recipe.checkpoint, recipe.outputs_to)
            if asked_about in seen:
                check_feasible(run.plan, request.base)
            else:
                seen.append(asked_about)
                self._training.check(train_request(request, run))

    def run(self, request: MatrixRequest) -> MatrixOutcome:
        """Run the missing combinations.

        Raises:
            BusyError: Another process is working on this matrix.
            CloudGpuError: The command was aborted, by an error that would affect every other combination too or while a
                run may be running. The hint lists what is left. A failed run is not an error.
        """
        begun = self.beginning(request)
        if begun.missing:
            with Stages(self._context.clock, self._context.emit).stage("check data"):
                self._check(request)
        lease = Lease(self._context.home.matrix(begun.record.name).lease, self._context.clock, self._context.owner)
        with lease.hold():
            return _Session(self._context, self._training, self._connect, self._cluster, request, begun.record).run()


class _Session:
    """One `train --matrix` command."""

    def __init__(
        self,
        context: Context,
        training: Training,
        connect: Connect,
        cluster: MatrixCluster,
        request: MatrixRequest,
        record: MatrixRecord,
    ) -> None:
        self._context = context
        self._training = training
        self._connect = connect
        self._cluster = cluster
        self._request = request
        self._records = MatrixRecords(context.home)
        self._record = self._records.save(record)
        self._asked = _Asked(request.end_on_interrupt)
        self._interrupted = False
        self._unfetched: tuple[str, ...] = ()
        self._lost: tuple[str, ...] = ()

    def run(self) -> MatrixOutcome:
        try:
            try:
                stopped = self._every()
            except KeyboardInterrupt:
                stopped = _INTERRUPTED
            return self._finished(stopped)
        except CloudGpuError as err:
            self._abandoned(err)
            raise

    def _every(self) -> str:
        """Run what is missing; returns why combinations are left, empty when none is."""
        missing = [run for run in self._request.plan.runs if not self._has_result(run)]
        if missing:
            with Stages(self._context.clock, self._context.emit).stage("provision"):
                self._record = self._cluster.up(self._record, self._request)
        for place, run in enumerate(missing, start=1):
            expired = self._expired()
            if expired:
                return expired
            self._context.emit(Note(f"combination {place} of {len(missing)}: {run.combination.label}"))
            good = self._one(run)
            self._write_table()
            if self._interrupted:
                return _INTERRUPTED
            if not good and self._request.fail_fast and place < len(missing):
                return "a combination failed, and --fail-fast was given"
        return ""

    def _one(self, run: PlannedRun) -> bool:
        """Run one combination to its end. Return True if it succeeded."""
        going = self._going_on(run)
        try:
            outcome = self._attached(going) if going is not None else self._trained(run)
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
        wanted = train_request(self._request, run)
        return self._training.train(
            replace(wanted, cluster=self._record.cluster, end_on_interrupt=self._asked, run_id=run_id)
        )

    def _attached(self, going: RunRecord) -> RunOutcome:
        self._context.emit(Note(f"run {going.run_id} was started earlier: following it to its end"))
        watching = Watching(self._context, self._connect)
        try:
            return watching.attach(going.run_id)
        except KeyboardInterrupt:
            return replace(RunOutcome(going, self._record.simulated), interrupted=True)

    def _going_on(self, run: PlannedRun) -> RunRecord | None:
        """Return the combination's unfinished run, or None if a new one must be started.

        Raises:
            StateError: The run belongs to an older version of the recipe and still occupies the GPUs.
        """
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        known = known_run(row, self._context.records)
        if known is None or known.ended_at is not None:
            return None
        if not known.ranks or self._context.records.cluster(known.cluster) is None:
            self._closed(known)
            return None
        if row.digest != run.combination.digest and not known.judged:
            message = f"run {known.run_id} goes on with the recipe as it was before it was changed"
            finish, cancel = (command("cloudgpu", verb, known.run_id) for verb in ("attach", "cancel"))
            raise StateError(message, hint=f"`{finish}` or `{cancel}` first")
        return known

    def _closed(self, known: RunRecord) -> None:
        """Close a run whose command was killed before its first rank started, or whose cluster no longer exists."""
        self._lost += never_fetched(known, CLUSTER_DELETED)
        now = self._context.clock.now()
        ended = known if known.judged else replace(known, state="interrupted", reason="its command was killed")
        self._context.records.save_run(replace(ended, ended_at=now))
        self._context.ledger.run_ended(known.run_id, ended.state, now)

    def _note_error(self, run: PlannedRun, err: CloudGpuError) -> None:
        """Record an error that affects only this combination as its result.

        Raises:
            CloudGpuError: Any other error: the run may still occupy the GPUs, or the next run would fail the same way.
        """
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        known = known_run(row, self._context.records)
        if isinstance(err, _EVERY_ONE) or (known is not None and known.ranks and known.ended_at is None):
            raise err
        self._context.emit(Note(f"{run.combination.label} failed: {err.message}"))
        if known is None:
            self._save_row(replace(row, reason=err.message))

    def _expired(self) -> str:
        """Return why no further run can be started in this cluster; empty if one can. Warn if little time is left."""
        cluster = self._context.records.cluster(self._record.cluster)
        if cluster is None or cluster.state != "up":
            return f"cluster {self._record.cluster} was ended meanwhile"
        left_s = (cluster.expires_at - self._context.clock.now()).total_seconds()
        if left_s <= 0:
            return f"cluster {cluster.name} has expired"
        longest = max((row.seconds or 0.0 for row in self._outcome().rows), default=0.0)
        if left_s < longest:
            told = f"cluster {cluster.name} has {left_s / 60:.0f} min left, and the longest run so far took"
            extend = command("cloudgpu", "extend", cluster.name)
            self._context.emit(Note(f"{told} {longest / 60:.0f} min: `{extend}` extends it"))
        return ""

    def _finished(self, stopped: str) -> MatrixOutcome:
        """Delete the cluster unless it is to be kept, and return the outcome."""
        present = self._cluster.own(self._record)
        kept = self._why_kept(stopped) if present is not None else ""
        unended: CloudGpuError | None = None
        if present is not None and not kept:
            try:
                with Stages(self._context.clock, self._context.emit).stage("down"):
                    self._record = self._cluster.end(self._record, present)
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
        if present is not None and kept:
            return replace(outcome, left=(still_up(present),))
        if present is not None and unended is not None:
            left = tuple(getattr(unended, "left", ())) or (still_up(present),)
            return replace(outcome, unended=unended.message, left=left)
        return outcome

    def _why_kept(self, stopped: str) -> str:
        failed = any(row.state not in ("succeeded", "not-run", "waiting") for row in self._outcome().rows)
        present = self._cluster.own(self._record)
        if stopped == _INTERRUPTED:
            what = f"cluster {self._record.cluster}"
            return "" if self._asked(what) else "interrupted; the cluster was left as it is"
        if self._unfetched and present is not None:
            return "outputs could not be fetched"
        if self._request.keep:
            return "--keep"
        return "--keep-on-failure" if self._request.keep_on_failure and failed else ""

    def _abandoned(self, err: CloudGpuError) -> None:
        """Report how to continue after an error, and what is left."""
        err.hint = "; ".join(part for part in (err.hint, "the same command goes on with what is missing") if part)
        with contextlib.suppress(CloudGpuError):
            present = self._cluster.own(self._record)
            left = () if present is None else (still_up(present),)
            if present is not None:
                err.hint += f"; {still_up(present)}"
            err.partial_result = replace(self._write_table(), stopped=err.message, left=left).as_json()

    def _has_result(self, run: PlannedRun) -> bool:
        row = next(row for row in self._record.rows if row.values == run.combination.values)
        return has_result(row, run, self._context.records)

    def _save_row(self, row: MatrixRow) -> None:
        self._record = self._records.save(self._record.with_row(row))

    def _outcome(self) -> MatrixOutcome:
        path = self._context.home.matrix(self._record.name).table
        return outcome_of(
            self._record, self._context.records, self._context.ledger, self._context.clock.now(), str(path)
        )

    def _write_table(self) -> MatrixOutcome:
        outcome = self._outcome()
        write_durably(self._context.home.matrix(self._record.name).table, outcome.as_csv())
        return outcome
