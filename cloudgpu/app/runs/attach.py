"""`logs`, `attach` and `cancel`: reconnect to a run that another command started."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cloudgpu.app.runs.finish import RunFinisher, add_live_run_hint
from cloudgpu.app.runs.follow import FollowedRun, FollowResult, with_final_status
from cloudgpu.app.runs.outcome import CLUSTER_DELETED, RunOutcome, lost_output_lines
from cloudgpu.app.runs.services import follow_stage
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.deletion import check_identity
from cloudgpu.backends.lifecycle.reuse import ALIVE_STATES
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError, StateError, UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RecordStore, RunRecord
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.text import command

_NO_NODE = "all of its nodes are terminated"


class RunWatcher:
    """Reconnects to the runs of one backend that are recorded in one state home."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def logs(self, run_id: str) -> FollowResult:
        """Follow a live run until it finishes, without deleting or downloading anything.

        Raises:
            UsageError: The run does not exist or has finished.
            StateError: All nodes of the run are terminated.
            ConnectError: The nodes are unreachable.
        """
        record, cluster = self._live(run_id)
        with _live_run_hint(record), self._running() as running:
            running.connect(self._require_alive_nodes(record, cluster))
            followed = running.follow(record, open_services=False)
        self._context.records.save_run(with_final_status(record, followed))
        return followed

    def attach(self, run_id: str, *, keep: bool = False) -> RunOutcome:
        """Follow a live run and finish it like `train`: download outputs, delete the cluster, close the ledger rows.

        If all nodes of the run are terminated, the run becomes `lost`, unless its final status is already recorded.

        Raises:
            UsageError: The run does not exist or has finished, or its cluster no longer exists.
            ConnectError: The nodes are unreachable; the run may still be running.
            RemoteCommandError: The cluster was deleted before the run's outputs were downloaded.
        """
        record, cluster = self._live(run_id, also_judged=True)
        if keep and not record.keep:
            record = self._context.records.save_run(replace(record, keep=True))
        stages = Stages(self._context.clock, self._context.emit, record.stages)
        finishing = RunFinisher(self._context, stages)
        with FollowedRun(self._context, stages) as running:
            try:
                inventory = self._alive_nodes(cluster)
                if not inventory.nodes:
                    return finishing.finish(self._lost(record, cluster), None)
                running.connect(inventory)
                with stages.stage(follow_stage(record)):
                    followed = running.follow(record)
                return finishing.finish(finishing.record_final_status(record, followed), running, followed)
            except CloudGpuError as err:
                finishing.finish_aborted(record, err)
                raise

    def cancel(self, run_id: str) -> RunRecord:
        """Stop a run and keep its cluster.

        Raises:
            UsageError: The run does not exist or has finished.
            ConnectError: The nodes are unreachable; the run may still be running.
        """
        record, cluster = self._live(run_id)
        with _live_run_hint(record):
            inventory = self._alive_nodes(cluster)
        if inventory.nodes:
            with _live_run_hint(record), self._running() as running:
                running.connect(inventory)
                running.stop(record)
                record = with_final_status(record, running.follow(record))
            self._context.emit(
                Note(f"cluster {cluster.name} keeps running until {cluster.expires_at:%Y-%m-%d %H:%M} UTC")
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
        check_identity(cluster, self._context.backend)
        return record, cluster

    def _alive_nodes(self, cluster: ClusterRecord) -> Inventory:
        """Return the pending and running nodes. Connecting to a terminated node would only time out."""
        states = self._context.backend.instance_states(cluster.region, cluster.instance_ids)
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
        expired = cluster.expires_at <= self._context.clock.now()
        reason = f"its nodes expired at {cluster.expires_at:%Y-%m-%d %H:%M} UTC" if expired else _NO_NODE
        return self._context.records.save_run(replace(record, state="lost", reason=reason))

    def _running(self) -> FollowedRun:
        return FollowedRun(self._context, Stages(self._context.clock, self._context.emit))


@contextmanager
def _live_run_hint(record: RunRecord) -> Iterator[None]:
    """Add a hint to connection errors: the run may still be running."""
    try:
        yield
    except ConnectError as err:
        add_live_run_hint(err, record)
        raise


def _refuse_lost_outputs(record: RunRecord) -> None:
    """Raise an error if outputs were lost because the cluster was deleted.

    Raises:
        RemoteCommandError: The run expected outputs that were never downloaded.
    """
    for line in lost_output_lines(record, CLUSTER_DELETED):
        logs = command("cloudgpu", "logs", record.run_id)
        hint = f"run {record.run_id} has finished ({record.state}); run `{logs}` to see its logs"
        raise RemoteCommandError(line, hint=hint)


def find_run(records: RecordStore, run_id: str) -> RunRecord:
    """Return the run with this ID, or the latest run if the ID is empty.

    Raises:
        UsageError: The run does not exist.
    """
    runs = [] if run_id else records.runs()
    record = records.run(run_id) if run_id else runs[-1] if runs else None
    if record is None:
        message = f"run {run_id} does not exist" if run_id else "no run has been started yet"
        raise UsageError(message, hint="run `cloudgpu status --all` to list the runs")
    return record


def read_stored_lines(home: Home, record: RunRecord, rank: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (rank, line) pairs from a run's logs on this machine, rank by rank.

    Raises:
        UsageError: The run has no such rank.
    """
    ranks = sorted(rank for ranks in record.ranks.values() for rank in ranks)
    if rank is not None and rank not in ranks:
        message = (
            f"run {record.run_id} has no rank {rank}; its ranks are {ranks[0]} to {ranks[-1]}"
            if ranks
            else f"run {record.run_id} has not started any rank"
        )
        raise UsageError(message)
    logs = LogStore(home.run(record.run_id))
    for selected in ranks if rank is None else [rank]:
        for line in logs.lines(selected):
            yield selected, line


def explain_missing_lines(record: RunRecord) -> str:
    """Explain why this machine has no log lines for a run."""
    if not record.ranks:
        when = (
            "has not started its ranks yet" if record.state == "preparing" else f"{record.state} before a rank started"
        )
        return f"run {record.run_id} {when}{': ' + record.reason if record.reason else ''}"
    return f"this machine has no log lines of run {record.run_id}; the run is {record.state}"
