"""`logs`, `attach` and `cancel`: reconnect to a run that another command started."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime

from cloudgpu.app.runs.finish import RunFinisher, add_live_run_hint, with_final_status
from cloudgpu.app.runs.lost_nodes import node_words, why_terminated
from cloudgpu.app.runs.nodes import FollowResult, RunNodes
from cloudgpu.app.runs.outcome import CLUSTER_DELETED, RunOutcome, lost_output_lines
from cloudgpu.app.runs.services import follow_stage
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError, StateError, UsageError
from cloudgpu.launch.inventory import ALIVE_STATES, Inventory
from cloudgpu.paths import Home
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import LogFolder, Note, ProgressEvent, RankOutput, Stages
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command, index_range_text

_NO_NODE = "all of its nodes are terminated"


class RunWatcher:
    """Reconnects to runs on one backend that are recorded in one state home."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def logs(
        self, run_id: str, on_copied: Callable[[], None] = lambda: None, *, follow: bool = True
    ) -> FollowResult | None:
        """Copy the output of a live run, then follow the run until it finishes.

        Outputs are not downloaded and the cluster is not deleted.

        Args:
            run_id: The run.
            on_copied: Called when all output so far is on this machine, before the run is followed.
            follow: Whether to follow the run. If not, return None after the copy.

        Raises:
            UsageError: The run does not exist, has started no ranks or has finished, or its cluster no longer exists.
            StateError: All nodes of the run are terminated.
            ConnectError: The nodes are unreachable.
        """
        record, cluster = self._live(run_id)
        with _live_run_hint(record), self._nodes() as nodes:
            nodes.connect(self._require_alive_nodes(record, cluster))
            nodes.copy_output(record)
            on_copied()
            if not follow:
                return None
            followed = nodes.follow(record, open_services=False)
        self._context.records.save_run(with_final_status(record, followed))
        return followed

    def attach(self, run_id: str, *, keep: bool = False) -> RunOutcome:
        """Follow a live run and finish it like `train`: download outputs, delete the cluster, close the ledger rows.

        With `keep`, the cluster is not deleted. If all nodes of the run are terminated, the run becomes `lost`, unless
        its final status is already recorded.

        Raises:
            UsageError: The run does not exist, has started no ranks or has finished, or its cluster no longer exists.
            ConnectError: The nodes are unreachable; the run may still be running.
            RemoteCommandError: The cluster was deleted before the run's outputs were downloaded.
        """
        record, cluster = self._live(run_id, also_judged=True)
        if keep and not record.keep:
            record = self._context.records.save_run(replace(record, keep=True))
        self._context.emit(LogFolder(self._context.home.run(record.run_id).root))
        stages = Stages(self._context.clock, self._context.emit, record.stages)
        finishing = RunFinisher(self._context, stages)
        # The stages of the run include its own connection to the nodes, not the one of this command.
        with self._nodes() as nodes:
            try:
                inventory = self._alive_nodes(cluster)
                if not inventory.nodes:
                    return finishing.finish(self._lost(record, cluster), None)
                nodes.connect(inventory)
                with stages.stage(follow_stage(record)):
                    followed = nodes.follow(record)
                if followed.ran_s is not None:
                    stages.correct(follow_stage(record), followed.ran_s)
                return finishing.finish(finishing.record_final_status(record, followed), nodes, followed)
            except CloudGpuError as err:
                finishing.finish_aborted(record, err)
                raise

    def cancel(self, run_id: str) -> RunRecord:
        """Stop a run without deleting its cluster. A run whose nodes are all terminated becomes `lost`.

        Raises:
            UsageError: The run does not exist, has started no ranks or has finished, or its cluster no longer exists.
            ConnectError: The nodes are unreachable; the run may still be running.
        """
        record, cluster = self._live(run_id)
        with _live_run_hint(record):
            inventory = self._alive_nodes(cluster)
        if inventory.nodes:
            # The rest of the output is stored, but not shown: the caller did not ask for it.
            with _live_run_hint(record), self._nodes(replace(self._context, emit=self._emit_no_output)) as nodes:
                nodes.connect(inventory)
                nodes.stop(record)
                record = with_final_status(record, nodes.follow(record))
            self._context.emit(
                Note(f"cluster {cluster.name} keeps running until {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC")
            )
        else:
            record = self._lost(record, cluster)
        now = self._context.clock.now()
        record = self._context.records.save_run(replace(record, ended_at=now))
        self._context.ledger.run_ended(run_id, record.state, now)
        return record

    def _live(self, run_id: str, *, also_judged: bool = False) -> tuple[RunRecord, ClusterRecord]:
        record = find_run(self._context.records, run_id)
        cluster = self._context.records.cluster(record.cluster)
        if also_judged and cluster is None:
            _refuse_lost_outputs(record)
        ended = record.ended_at is not None or (record.judged and not also_judged)
        if ended or cluster is None or not record.ranks:
            message = f"run {run_id} is not running: {record.state}{', ' + record.reason if record.reason else ''}"
            raise UsageError(message, hint=command("cloudgpu", "logs", run_id))
        try:
            check_identity(cluster, self._context.backend)
        except CloudGpuError as err:
            if not err.renewable:
                raise
            # Nothing of another account can change without valid credentials, and a deletion checks them again.
            self._context.emit(
                Note(f"{err.message}; the run is followed without AWS. To renew the credentials: {err.hint}")
            )
        return record, cluster

    def _alive_nodes(self, cluster: ClusterRecord) -> Inventory:
        """Return the nodes to connect to; with expired credentials, all nodes that are recorded."""
        try:
            return self._authorized_nodes(cluster)
        except CloudGpuError as err:
            if not err.renewable:
                raise
            return stored_inventory(self._context.home, cluster)

    def _authorized_nodes(self, cluster: ClusterRecord) -> Inventory:
        """Return the pending and running nodes, after authorizing SSH from the caller's address.

        The other nodes are reported and left out, because connecting to a terminated node would only time out.
        """
        states = self._context.backend.instance_states(cluster.placement.region, cluster.placement.instance_ids)
        if not any(state in ALIVE_STATES for state in states.values()):
            return Inventory(cluster.name, ())
        self._context.clusters.authorize(cluster)
        inventory = stored_inventory(self._context.home, cluster)
        for node in inventory.nodes:
            if states.get(node.instance_id) not in ALIVE_STATES:
                self._context.emit(Note(f"{node.instance_id} is {states.get(node.instance_id, 'unknown')}", node.index))
        return replace(
            inventory, nodes=tuple(node for node in inventory.nodes if states.get(node.instance_id) in ALIVE_STATES)
        )

    def _require_alive_nodes(self, record: RunRecord, cluster: ClusterRecord) -> Inventory:
        inventory = self._alive_nodes(cluster)
        if not inventory.nodes:
            message = f"all nodes of run {record.run_id} are terminated"
            raise StateError(message, hint=f"run `{command('cloudgpu', 'attach', record.run_id)}` to close the run")
        return inventory

    def _lost(self, record: RunRecord, cluster: ClusterRecord) -> RunRecord:
        """Mark a run whose nodes are terminated as `lost`, unless its final status was recorded. Return its record."""
        if record.judged:
            return record
        expired = cluster.lifecycle.expires_at <= self._context.clock.now()
        why = why_terminated(self._context, cluster)
        terminated = f"all of its {node_words(cluster)}s are terminated, {why}" if why else _NO_NODE
        reason = f"its nodes expired at {cluster.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC" if expired else terminated
        return self._context.records.save_run(replace(record, state="lost", reason=reason))

    def _nodes(self, context: Context | None = None) -> RunNodes:
        context = context or self._context
        return RunNodes(context, Stages(context.clock, context.emit))

    def _emit_no_output(self, event: ProgressEvent) -> None:
        if not isinstance(event, RankOutput):
            self._context.emit(event)


@contextmanager
def _live_run_hint(record: RunRecord) -> Iterator[None]:
    """Extend the hint of connection errors with the state of the run, which may still be running."""
    try:
        yield
    except ConnectError as err:
        add_live_run_hint(err, record)
        raise


def _refuse_lost_outputs(record: RunRecord) -> None:
    """Reject a run whose outputs were lost because its cluster was deleted."""
    for line in lost_output_lines(record, CLUSTER_DELETED):
        logs = command("cloudgpu", "logs", record.run_id)
        hint = f"run {record.run_id} has finished ({record.state}); run `{logs}` to see its logs"
        raise RemoteCommandError(line, hint=hint)


def find_run(records: RecordStore, run_id: str) -> RunRecord:
    """Return the run with this ID. If the ID is empty, return the newest running run, or else the newest run.

    Raises:
        UsageError: The run does not exist, or the ID is empty and there is no run.
    """
    record = records.run(run_id) if run_id else _newest(records.runs())
    if record is None:
        message = f"run {run_id} does not exist" if run_id else "no run has been started yet"
        raise UsageError(message, hint="run `cloudgpu status --all` to list the runs")
    return record


def _newest(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the last running run, or else the last run; None if there are no runs. `runs` is sorted by start."""
    running = [run for run in runs if run.state == "running" and run.ended_at is None]
    return next(reversed(running or runs), None)


def recorded_ranks(record: RunRecord) -> list[int]:
    """Return the numbers of a run's ranks, sorted."""
    return sorted(rank for ranks in record.ranks.values() for rank in ranks)


def require_rank(record: RunRecord, rank: int | None) -> None:
    """Check that the run has this rank, if one is given.

    Raises:
        UsageError: The run has no such rank.
    """
    ranks = recorded_ranks(record)
    if rank is not None and rank not in ranks:
        raise UsageError(
            f"run {record.run_id} has no rank {rank}; {index_range_text(len(ranks), 'rank', ranks[0])}"
            if ranks
            else f"run {record.run_id} has not started any rank"
        )


def read_stored_output(
    home: Home,
    record: RunRecord,
    rank: int | None = None,
    *,
    tail: int | None = None,
    since: datetime | None = None,
    timed: bool = False,
) -> Iterator[RankOutput]:
    """Yield a run's output on this machine, rank by rank or for a single rank.

    Args:
        home: The state home.
        record: The run.
        rank: The only rank to read; None for all.
        tail: Number of lines to read from the end of each rank's output; None for all.
        since: Time from which the lines must have been written; None for all.
        timed: Whether to read when the lines were written. Without it, reading is faster.

    Raises:
        UsageError: It is not known which lines of a rank were written since that time.
    """
    ranks = recorded_ranks(record)
    logs = LogStore(home.run(record.run_id))
    starts = {
        selected: max(
            0 if tail is None else logs.start_of_last(selected, tail),
            0 if since is None else _start_since(logs, record, selected, since),
        )
        for selected in (ranks if rank is None else [rank])
    }
    for selected, start in starts.items():
        if timed:
            for written_at, lines in logs.timed_blocks(selected, start):
                yield RankOutput(selected, lines, len(ranks) == 1, written_at)
        else:
            for lines in logs.blocks(selected, start):
                yield RankOutput(selected, lines, single_rank=len(ranks) == 1)


def _start_since(logs: LogStore, record: RunRecord, rank: int, since: datetime) -> int:
    start = logs.start_since(rank, since)
    if start is None:
        raise UsageError(
            f"which output of rank {rank} of run {record.run_id} was written since {since:%Y-%m-%d %H:%M:%S} UTC is "
            "unknown: the copy on this machine lacks the times",
            hint="runs that an earlier version of cloudgpu started or copied have no times; use --tail N instead",
        )
    return start


def copied_at(home: Home, record: RunRecord) -> datetime | None:
    """Return when the output on this machine was last extended; None if there is none."""
    return LogStore(home.run(record.run_id)).written_at(recorded_ranks(record))


def explain_missing_lines(record: RunRecord) -> str:
    """Explain why this machine has no log lines for a run."""
    if not record.ranks:
        when = (
            "has not started its ranks yet"
            if record.state == "preparing"
            else f"started no ranks (state: {record.state})"
        )
        return f"run {record.run_id} {when}{': ' + record.reason if record.reason else ''}"
    return f"this machine has no log lines of run {record.run_id} (state: {record.state})"
