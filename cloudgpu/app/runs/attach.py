"""Coming back to a run: `logs`, `attach`, `cancel`. None of them needs the command that started it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from cloudgpu.app.clusters.factory import authorize_caller
from cloudgpu.app.runs.finish import Finishing, going_on
from cloudgpu.app.runs.follow import Followed, Running, judged
from cloudgpu.app.runs.outcome import CLUSTER_DELETED, RunOutcome, never_fetched
from cloudgpu.app.runs.services import stage_of
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.base import Connect
from cloudgpu.backends.context import Context
from cloudgpu.backends.deletion import check_identity
from cloudgpu.backends.reuse import ALIVE
from cloudgpu.errors import CloudGpuError, ConnectError, RemoteCommandError, StateError, UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.progress import Note
from cloudgpu.state.inventories import stored_inventory
from cloudgpu.state.records import ClusterRecord, Records, RunRecord
from cloudgpu.text import command

_NO_NODE = "none of its nodes is left"


class Watching:
    """Looks after runs that were started before. One object for one cloud and one home."""

    def __init__(self, context: Context, connect: Connect) -> None:
        self._context = context
        self._connect = connect

    def logs(self, run_id: str) -> Followed:
        """Follow a live run to its verdict; nothing is ended or collected.

        Raises:
            UsageError: No such run, or it is over.
            StateError: None of its nodes is left.
            ConnectError: Its nodes cannot be reached.
        """
        record, cluster = self._live(run_id)
        with _going_on(record), self._running() as running:
            running.connect(self._some_left(record, cluster))
            followed = running.follow(record, open_services=False)
        self._context.records.save_run(judged(record, followed))
        return followed

    def attach(self, run_id: str, *, keep: bool = False) -> RunOutcome:
        """Follow a live run and finish it as its `train` would have: outputs, teardown, bill.

        A run whose nodes are all gone is finished without them, as lost unless its verdict is known.

        Raises:
            UsageError: No such run, or it is over and its cluster too.
            ConnectError: Its nodes cannot be reached; it may still run.
            RemoteCommandError: Its cluster was deleted before its outputs were fetched.
        """
        record, cluster = self._live(run_id, also_judged=True)
        if keep and not record.keep:
            record = self._context.records.save_run(replace(record, keep=True))
        stages = Stages(self._context.clock, self._context.emit, record.stages)
        finishing = Finishing(self._context, stages)
        with Running(self._context, self._connect, stages) as running:
            try:
                inventory = self._left(cluster)
                if not inventory.nodes:
                    return finishing.finish(self._lost(record, cluster), None)
                running.connect(inventory)
                with stages.stage(stage_of(record)):
                    followed = running.follow(record)
                return finishing.finish(finishing.judge(record, followed), running, followed)
            except CloudGpuError as err:
                finishing.abandoned(record, err)
                raise

    def cancel(self, run_id: str) -> RunRecord:
        """End a run and leave its cluster.

        Raises:
            UsageError: No such run, or it is over.
            ConnectError: Its nodes cannot be reached; it may still run.
        """
        record, cluster = self._live(run_id)
        with _going_on(record):
            inventory = self._left(cluster)
        if inventory.nodes:
            with _going_on(record), self._running() as running:
                running.connect(inventory)
                running.stop(record)
                record = judged(record, running.follow(record))
            self._context.emit(
                Note(f"cluster {cluster.name} is still up until {cluster.expires_at:%Y-%m-%d %H:%M} UTC")
            )
        else:
            record = self._lost(record, cluster)
        now = self._context.clock.now()
        record = self._context.records.save_run(replace(record, ended_at=now))
        self._context.ledger.run_ended(run_id, record.state, now)
        return record

    def _live(self, run_id: str, *, also_judged: bool = False) -> tuple[RunRecord, ClusterRecord]:
        record = found_run(self._context.records, run_id)
        cluster = self._context.records.cluster(record.cluster)
        if also_judged and cluster is None:
            _refuse_lost_outputs(record)
        over = record.ended_at is not None or (record.judged and not also_judged)
        if over or cluster is None or not record.ranks:
            message = f"run {run_id} is not running: {record.state}{', ' + record.reason if record.reason else ''}"
            raise UsageError(message, hint=command("cloudgpu", "logs", run_id))
        check_identity(cluster, self._context.cloud)
        return record, cluster

    def _left(self, cluster: ClusterRecord) -> Inventory:
        """The nodes that are there, as far as the cloud knows; without asking, a dead one would be awaited long."""
        states = self._context.cloud.nodes_alive(cluster.region, cluster.instance_ids)
        if not any(state in ALIVE for state in states.values()):
            return Inventory(cluster.name, ())
        authorize_caller(self._context, cluster)
        inventory = stored_inventory(self._context.home, cluster)
        for node in inventory.nodes:
            if states.get(node.instance_id) not in ALIVE:
                self._context.emit(Note(f"{node.instance_id} is {states.get(node.instance_id, 'unknown')}", node.index))
        return replace(inventory, nodes=tuple(n for n in inventory.nodes if states.get(n.instance_id) in ALIVE))

    def _some_left(self, record: RunRecord, cluster: ClusterRecord) -> Inventory:
        inventory = self._left(cluster)
        if not inventory.nodes:
            message = f"none of the nodes of run {record.run_id} is left"
            raise StateError(message, hint=f"`{command('cloudgpu', 'attach', record.run_id)}` closes its ledger rows")
        return inventory

    def _lost(self, record: RunRecord, cluster: ClusterRecord) -> RunRecord:
        """A run without nodes: what its verdict was is known here, or nowhere."""
        if record.judged:
            return record
        expired = cluster.expires_at <= self._context.clock.now()
        reason = f"its nodes ended themselves at {cluster.expires_at:%Y-%m-%d %H:%M} UTC" if expired else _NO_NODE
        return self._context.records.save_run(replace(record, state="lost", reason=reason))

    def _running(self) -> Running:
        return Running(self._context, self._connect, Stages(self._context.clock, self._context.emit))


@contextmanager
def _going_on(record: RunRecord) -> Iterator[None]:
    """Add to the error of nodes that cannot be asked that their run may be going on."""
    try:
        yield
    except ConnectError as err:
        going_on(err, record)
        raise


def _refuse_lost_outputs(record: RunRecord) -> None:
    """Say that outputs are lost where the cluster that held them was deleted.

    Raises:
        RemoteCommandError: They were expected and never fetched.
    """
    for line in never_fetched(record, CLUSTER_DELETED):
        state = f"run {record.run_id} is over ({record.state}); its logs are here"
        raise RemoteCommandError(line, hint=f"{state}: {command('cloudgpu', 'logs', record.run_id)}")


def found_run(records: Records, run_id: str) -> RunRecord:
    """A run by its id; an empty id is the latest.

    Raises:
        UsageError: There is none.
    """
    runs = [] if run_id else records.runs()
    record = records.run(run_id) if run_id else runs[-1] if runs else None
    if record is None:
        message = f"there is no run {run_id}" if run_id else "there is no run yet"
        raise UsageError(message, hint="`cloudgpu status --all` lists the runs")
    return record


def stored_lines(home: Home, record: RunRecord, rank: int | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a run that are already on this machine: (rank, line), rank after rank.

    Raises:
        UsageError: The run has no such rank.
    """
    ranks = sorted(rank for ranks in record.ranks.values() for rank in ranks)
    if rank is not None and rank not in ranks:
        message = (
            f"run {record.run_id} has no rank {rank}; its ranks are {ranks[0]} to {ranks[-1]}"
            if ranks
            else f"run {record.run_id} started no rank"
        )
        raise UsageError(message)
    logs = LogStore(home.run(record.run_id))
    for one in ranks if rank is None else [rank]:
        for line in logs.lines(one):
            yield one, line


def no_lines(record: RunRecord) -> str:
    """Why this machine has no line of a run."""
    if not record.ranks:
        when = (
            "is before its first rank" if record.state == "preparing" else f"{record.state} before a rank was started"
        )
        return f"run {record.run_id} {when}{': ' + record.reason if record.reason else ''}"
    return f"this machine has no line that a rank of run {record.run_id} wrote; the run is {record.state}"
