"""Finish a run for `train` and `attach`: its final status, its outputs, its cluster and its ledger rows.

The effect of an error or Ctrl-C depends on the progress of the run:

    no rank was started     the run is closed; after an error, a cluster created for the run is deleted unless kept
    ranks may be running    nothing is stopped unless the user confirms it after Ctrl-C; `attach` follows the run again
    final status is known   the cluster is kept until `attach` has downloaded the outputs
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from math import isfinite

from cloudgpu.app.runs.concurrency import cancelled_by_deletion, delete_or_wait, delete_with_new_credentials
from cloudgpu.app.runs.lost_nodes import has_checkpoint
from cloudgpu.app.runs.nodes import FollowResult, RunNodes
from cloudgpu.app.runs.outcome import (
    CLUSTER_DELETED,
    RunOutcome,
    RunSummary,
    describe_run_and_cluster,
    lost_output_lines,
    remaining_cluster_line,
)
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import failed_cleanup_error
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError
from cloudgpu.launch.inventory import ALIVE_STATES
from cloudgpu.node.agent.transport import EFA, UNKNOWN
from cloudgpu.run.agent_messages import Verdict
from cloudgpu.run.collect import Collected
from cloudgpu.run.job import recipe_of
from cloudgpu.run.metrics import Measured
from cloudgpu.run.progress import Note, Stages
from cloudgpu.run.transport import PLUGIN_HINT
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.run_records import RunRecord, RunState
from cloudgpu.text import command

_STATES: Mapping[str, RunState] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}
_INTERRUPTED = "interrupted"
_NEEDS_NODES = re.compile(r"cloudgpu (?:down|ssh|status|exec)\b|\bssh -p\b|\blog in\b|\bon the nodes?\b")
"""Advice that needs a running node or an existing cluster."""


def run_state(verdict: Verdict) -> RunState:
    """Return the run's state for a final status. Map an unknown status to `lost`."""
    return _STATES.get(verdict.state, "lost")


def with_final_status(record: RunRecord, followed: FollowResult) -> RunRecord:
    """Return the run's record with its final status and metrics.

    A successful run becomes `failed` if a metric with a required minimum is too low or was never printed.
    """
    verdict = followed.verdict
    metrics = {
        metric.name: metric.value for metric in followed.measured if metric.value is not None and isfinite(metric.value)
    }
    record = replace(
        record,
        state=run_state(verdict),
        metrics=metrics,
        reason=verdict.reason,
        failed_rank=verdict.rank,
        exit_code=verdict.exit_code,
        transport=followed.transport or record.transport,
    )
    required = recipe_of(record).resources.network
    if record.state == "succeeded" and required == EFA and record.transport not in ("", EFA, UNKNOWN):
        # The run ended before its agents could fail it.
        reason = f"resources.network is efa, but NCCL used {record.transport}: {PLUGIN_HINT}"
        return replace(record, state="failed", reason=reason)
    missed = [metric for metric in followed.measured if metric.missed_target]
    if record.state == "succeeded" and missed:
        return replace(record, state="failed", reason=_missed_reason(missed[0]))
    return record


def _missed_reason(missed: Measured) -> str:
    """Return why a metric fails the run."""
    low, high = missed.metric.at_least, missed.metric.at_most
    if missed.value is not None and missed.is_too_high:
        return f"{missed.name} reached {missed.value:g}, above the allowed maximum of {high:g}"
    if missed.value is not None and low is not None:
        return f"{missed.name} reached {missed.value:g}, below the required minimum of {low:g}"
    limits = [] if low is None else [f"the required minimum is {low:g}"]
    limits += [] if high is None else [f"the allowed maximum is {high:g}"]
    what = "was never printed" if missed.value is None else f"reached {missed.value:g}"
    what = f"is unknown, because {missed.unknown}" if missed.unknown else what
    return f"{missed.name} {what}; {' and '.join(limits)}"


class RunFinisher:
    """Finishes one run: downloads its outputs, deletes its cluster and closes its ledger rows."""

    def __init__(self, context: Context, stages: Stages) -> None:
        self._context = context
        self._stages = stages
        self._summary = RunSummary(context, stages)
        self._final_record: RunRecord | None = None

    def record_final_status(self, record: RunRecord, followed: FollowResult) -> RunRecord:
        """Record the final status of the ranks.

        Raises:
            StateError: The run's record cannot be written. `finish_aborted` still reports the final status.
        """
        self._final_record = with_final_status(record, followed)
        return self._context.records.save_run(self._final_record)

    def finish(
        self,
        record: RunRecord,
        nodes: RunNodes | None,
        followed: FollowResult | None = None,
        *,
        insist: bool = False,
    ) -> RunOutcome:
        """Collect the outputs, delete the cluster unless it is kept, and close the ledger rows.

        Args:
            record: The run with its final status.
            nodes: The connected nodes, or None if there is nothing to download.
            followed: The final status with metrics and last log lines.
            insist: Whether to delete a cluster that the run created even if the caller asked to keep it.

        Raises:
            StateError: The run's record cannot be written.
            LedgerError: The ledger cannot be written.
        """
        cluster = self._summary.cluster(record)
        record = cancelled_by_deletion(record, cluster)
        collected = Collected()
        if nodes is not None and nodes.connected and not (insist and record.outputs):
            nodes.forget(self._terminated_nodes(record, cluster))
            with self._stages.stage("collect"):
                collected = nodes.collect(record, () if cluster is None else cluster.placement.instance_ids)
            complete = not collected.failures and not collected.gone
            record = self._context.records.save_run(replace(record, outputs=collected.files, collected=complete))
        kept = self._why_kept(record, collected.failures, insist=insist)
        if collected.failures and kept:
            outcome = self._with_pending_outputs(record, kept, collected.failures, collected.notes)
        else:
            # Build the lines before the cluster is deleted, because they describe its current state.
            lost = self._lost(record, collected, cluster)
            outcome = replace(
                self._delete_cluster_and_close_run(record, kept, tuple(dict.fromkeys((*collected.notes, *lost)))),
                lost=lost,
            )
        outcome = replace(outcome, skipped=collected.skipped)
        if outcome.lost_nodes:
            outcome = replace(outcome, has_checkpoint=has_checkpoint(outcome.record, self._context.backend))
        return outcome if followed is None else replace(outcome, measured=followed.measured, tail=followed.tail)

    def _lost(self, record: RunRecord, collected: Collected, cluster: ClusterRecord | None) -> tuple[str, ...]:
        """Return a line for each reason why expected outputs can no longer be downloaded."""
        if collected.failures:
            return collected.failures
        if collected.gone and record.resolved.get("outputs"):
            return collected.gone
        return lost_output_lines(record, _why_unreachable(cluster, self._context.clock.now()))

    def _with_pending_outputs(
        self, record: RunRecord, kept: str, failures: tuple[str, ...], notes: tuple[str, ...]
    ) -> RunOutcome:
        """Keep the run open, because `attach` can still download its outputs from the nodes."""
        record = self._context.records.save_run(replace(record, stages=tuple(self._stages.done)))
        for note in (
            *notes,
            f"the cluster keeps running; `{command('cloudgpu', 'attach', record.run_id)}` downloads the outputs",
        ):
            self._context.emit(Note(note))
        return replace(self._summary.outcome(record, kept=kept), notes=notes, unfetched=failures)

    def _terminated_nodes(self, record: RunRecord, cluster: ClusterRecord | None) -> list[str]:
        """Return the instance IDs of a failed run's terminated nodes, whose outputs are lost."""
        if cluster is None or record.state in ("succeeded", "not-run"):
            return []
        try:
            states = self._context.backend.instance_states(cluster.placement.region, cluster.placement.instance_ids)
        except CloudGpuError:
            return []  # still download what is available; `down` reports the problem
        return [instance_id for instance_id, state in states.items() if state not in ALIVE_STATES]

    def detached_outcome(self, record: RunRecord) -> RunOutcome:
        """Return the outcome of a run started with `--detach`, which leaves the run and its cluster running."""
        record = self._context.records.save_run(replace(record, stages=tuple(self._stages.done)))
        return self._summary.outcome(record, kept="detached")

    def interrupted(
        self,
        run_id: str,
        nodes: RunNodes,
        end_now: Callable[[str], bool],
        delete_unstarted: Callable[[str], bool],
    ) -> RunOutcome:
        """Handle Ctrl-C: report what is still running and how to delete it, or stop the run if the caller confirms.

        Args:
            run_id: The run.
            nodes: The connected nodes.
            end_now: Function that asks whether to stop the run.
            delete_unstarted: Function that asks whether to delete the new cluster of a run that has started no rank.

        Raises:
            KeyboardInterrupt: The run is not recorded yet, so there is nothing to report.
        """
        record = self._context.records.run(run_id)
        if record is None:
            raise KeyboardInterrupt
        cluster = self._context.records.cluster(record.cluster)
        active = bool(record.ranks) and not record.judged
        if cluster is not None:
            self._context.emit(Note(remaining_cluster_line(cluster)))
        created_by_run = cluster is not None and cluster.identity.run_id == run_id
        asked = end_now if record.ranks else delete_unstarted
        if (active or created_by_run) and asked(describe_run_and_cluster(record, cluster)):
            return replace(self._stop_run_and_finish(record, nodes, own=created_by_run), interrupted=True)
        if active:
            record = self._context.records.save_run(replace(record, state="running", stages=tuple(self._stages.done)))
        elif not record.judged:
            record = self._close_run(replace(record, state="interrupted", reason=_INTERRUPTED))
        kept = "interrupted; the cluster is unchanged" if cluster is not None else ""
        return replace(self._summary.outcome(record, cluster, kept), interrupted=True)

    def finish_aborted(self, record: RunRecord, err: CloudGpuError) -> None:
        """Finish a run that an error aborted. Extend the error's hint with what is still running and how to attach.

        Raises:
            TeardownError: The cluster that the run created cannot be deleted; the message contains both errors.
        """
        try:
            self._close_if_unstarted(record, err)
        except CloudGpuError as worse:
            worse.partial_result = self._summary.partial_result(record)
            raise
        err.partial_result = self._summary.partial_result(record)

    def _close_if_unstarted(self, record: RunRecord, err: CloudGpuError) -> None:
        """Close a run that has started no rank, and delete its cluster. Otherwise only extend the hint of the error."""
        record = self._summary.known(record)
        cluster = self._summary.cluster(record)
        if record.ended_at is not None:
            return
        if record.ranks:
            # If the disk is full, the record may lack the final status.
            add_live_run_hint(err, record if record.judged else self._final_record or record)
            _add_hint(err, remaining_cluster_line(cluster) if cluster else "")
            return
        record = replace(record, state="failed", reason=err.message)
        try:
            # Write the record first, because `down` reads the state of the run from the record.
            with contextlib.suppress(StateError):
                self._context.records.save_run(record)
            self._delete_new_cluster(record, cluster, err)
        finally:
            # A full disk must not hide the error that aborted the run.
            with contextlib.suppress(StateError, LedgerError):
                self._close_run(record)

    def _delete_new_cluster(self, record: RunRecord, cluster: ClusterRecord | None, err: CloudGpuError) -> None:
        """Delete the cluster that the aborted run created, unless it is kept. Extend the hint of the error."""
        if cluster is None or cluster.identity.run_id != record.run_id or isinstance(err, TeardownError):
            return
        if record.keep or record.keep_on_failure:
            _add_hint(err, remaining_cluster_line(cluster))
            return
        try:
            with self._stages.stage("down"):
                delete_with_new_credentials(self._context, cluster)
        except CloudGpuError as failure:
            raise failed_cleanup_error(cluster.name, err, failure) from err
        err.hint = hint_after_deletion(err.hint, cluster.name)

    def _stop_run_and_finish(self, record: RunRecord, nodes: RunNodes, *, own: bool) -> RunOutcome:
        """Stop the ranks or, if none was started, cancel the run. Then finish the run."""
        followed = None
        if record.ranks and not record.judged:
            record, followed = self._stop_ranks(record, nodes)
        elif not record.judged:
            record = self._context.records.save_run(replace(record, state="cancelled", reason=_INTERRUPTED))
        return self.finish(record, nodes if record.ranks else None, followed, insist=own)

    def _stop_ranks(self, record: RunRecord, nodes: RunNodes) -> tuple[RunRecord, FollowResult | None]:
        """Stop the ranks and read their last lines, if the nodes are reachable."""
        followed = None
        try:
            self._context.emit(Note("stopping the ranks"))
            nodes.stop(record)
            followed = nodes.follow(record)
            record = with_final_status(record, followed)
        except CloudGpuError as err:
            self._context.emit(Note(f"cannot stop the ranks: {err.message}"))
        if not record.judged or record.state == "cancelled":
            record = replace(record, state="cancelled", reason=_INTERRUPTED)
        return self._context.records.save_run(record), followed

    def _why_kept(self, record: RunRecord, failures: tuple[str, ...], *, insist: bool) -> str:
        """Return why the cluster is kept, or an empty string. Pending outputs take precedence over the keep options."""
        cluster = self._summary.cluster(record)
        if cluster is None:
            return ""
        failed = record.state not in ("succeeded", "not-run")
        reasons = (
            (cluster.identity.run_id != record.run_id, "the run did not create the cluster"),
            (bool(failures) and not insist, f"outputs could not be downloaded ({', '.join(failures[:1])})"),
            (record.keep and not insist, "--keep"),
            (record.keep_on_failure and failed and not insist, "--keep-on-failure"),
        )
        return next((text for holds, text in reasons if holds), "")

    def _delete_cluster_and_close_run(self, record: RunRecord, kept: str, notes: tuple[str, ...]) -> RunOutcome:
        """Delete the cluster unless it is kept, then close the run. If the deletion fails, report it in the outcome."""
        cluster = self._summary.cluster(record)
        failure: CloudGpuError | None = None
        deleted: DeletionResult | None = None
        if cluster is not None and not kept:
            try:
                with self._stages.stage("down"):
                    deleted = delete_or_wait(self._context, cluster)
            except CloudGpuError as err:
                failure = err
        record = self._close_run(record)
        for note in notes:
            self._context.emit(Note(note))
        outcome = replace(self._summary.outcome(record, cluster, kept), notes=notes)
        if failure is None:
            return outcome if deleted is None else replace(outcome, left=deleted.storage.lines)
        left = tuple(getattr(failure, "left", ())) or ((remaining_cluster_line(cluster),) if cluster else ())
        return replace(outcome, unended=failure.message, left=left)

    def _close_run(self, record: RunRecord) -> RunRecord:
        """Record that the run is finished, and close its ledger rows."""
        stored = self._summary.known(record)
        record = replace(record, stages=tuple(self._stages.done))
        if stored.ended_at is not None:
            # Another process's `down` has already closed the run's ledger rows.
            return self._context.records.save_run(replace(record, ended_at=stored.ended_at))
        now = self._context.clock.now()
        record = self._context.records.save_run(replace(record, ended_at=now))
        self._context.ledger.run_ended(record.run_id, record.state, now)
        return record


def _why_unreachable(cluster: ClusterRecord | None, now: datetime) -> str:
    """Explain why a run's outputs cannot be downloaded."""
    if cluster is None:
        return CLUSTER_DELETED
    if cluster.lifecycle.expires_at <= now:
        return f"its cluster expired at {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
    return "none of its nodes could be reached"


def add_live_run_hint(err: CloudGpuError, record: RunRecord) -> None:
    """Extend an error's hint with the run's state and the command that attaches to the run."""
    state = f"has finished ({record.state})" if record.judged else "may still be running"
    _add_hint(err, f"run {record.run_id} {state}; attach to it with `{command('cloudgpu', 'attach', record.run_id)}`")


def hint_after_deletion(hint: str, cluster: str) -> str:
    """Return an error's hint without the advice that needs the nodes of a deleted cluster.

    Saved logs and changes of the recipe remain useful.
    """
    useful = [part for part in hint.split("; ") if part and not _NEEDS_NODES.search(part)]
    again = "to look at the nodes after a failure, add --keep-on-failure"
    return "; ".join([*useful, f"cluster {cluster} was deleted", again])


def _add_hint(err: CloudGpuError, text: str) -> None:
    err.hint = "; ".join(part for part in (err.hint, text) if part)
