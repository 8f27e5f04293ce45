"""Coming back to a run: `logs`, `attach`, `cancel`. None of them needs the command that started it."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cloudgpu.app.finishing import Finishing
from cloudgpu.app.happenings import Say
from cloudgpu.app.outcome import RunOutcome
from cloudgpu.app.ports import Cloud, Dial, Ledger
from cloudgpu.app.provisioning import stored_inventory
from cloudgpu.app.records import ClusterRecord, Records, RunRecord
from cloudgpu.app.running import Followed, Running, judged
from cloudgpu.app.stages import Stages
from cloudgpu.app.teardown import check_identity
from cloudgpu.clock import Clock
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.follow import LogStore
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note


class Watching:
    """Looks after runs that were started before. One object for one cloud and one home."""

    def __init__(  # noqa: PLR0917
        self, cloud: Cloud, ledger: Ledger, records: Records, home: Home, clock: Clock, dial: Dial, owner: str, say: Say
    ) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._records = records
        self._home = home
        self._clock = clock
        self._dial = dial
        self._owner = owner
        self._say = say

    def logs(self, run_id: str) -> Followed:
        """Follow a live run to its verdict; nothing is ended or collected.

        Raises:
            UsageError: No such run, or it is over.
            ConnectError: Its nodes cannot be reached.
        """
        record, cluster = self._live(run_id)
        with self._running(Stages(self._clock, self._say)) as running:
            running.reconnect(stored_inventory(self._home, cluster), self._states(cluster))
            followed = running.follow(record, Recipe.model_validate(record.resolved))
        self._records.save_run(judged(record, followed))
        return followed

    def attach(self, run_id: str, *, keep: bool = False) -> RunOutcome:
        """Follow a live run and finish it as its `train` would have: outputs, teardown, bill.

        Raises:
            UsageError: No such run, or it is over and its cluster too.
            TeardownError: The cluster could not be confirmed gone.
        """
        record, cluster = self._live(run_id, also_ended=True)
        recipe = Recipe.model_validate(record.resolved)
        stages = Stages(self._clock, self._say, record.stages)
        finishing = Finishing(
            self._cloud,
            self._ledger,
            self._records,
            self._home,
            self._clock,
            self._owner,
            stages,
            self._say,
            keep=keep,
        )
        inventory = stored_inventory(self._home, cluster)
        with self._running(stages) as running:
            running.reconnect(inventory, self._states(cluster))
            with stages.stage("train"):
                followed = running.follow(record, recipe)
            record = self._records.save_run(judged(record, followed))
            return finishing.finish(
                record, Job(run_id, recipe, inventory, ""), running, followed.measured, followed.tail
            )

    def cancel(self, run_id: str) -> RunRecord:
        """End a run and leave its cluster.

        Raises:
            UsageError: No such run, or it is over.
            ConnectError: Its nodes cannot be reached; it may still run.
        """
        record, cluster = self._live(run_id)
        with self._running(Stages(self._clock, self._say)) as running:
            running.reconnect(stored_inventory(self._home, cluster), self._states(cluster))
            running.stop(record)
            followed = running.follow(record, Recipe.model_validate(record.resolved))
        record = judged(record, followed)
        now = self._clock.now()
        self._ledger.run_ended(run_id, record.state, now)
        self._say(Note(f"cluster {cluster.name} is still up until {cluster.expires_at:%Y-%m-%d %H:%M} UTC"))
        return self._records.save_run(replace(record, ended_at=now))

    def _states(self, cluster: ClusterRecord) -> Mapping[str, str]:
        """How its nodes are by the cloud: one that was terminated is not waited for."""
        return self._cloud.nodes_alive(cluster.region, cluster.instance_ids)

    def _live(self, run_id: str, *, also_ended: bool = False) -> tuple[RunRecord, ClusterRecord]:
        record = found_run(self._records, run_id)
        cluster = self._records.cluster(record.cluster)
        over = record.ended_at is not None or (record.state not in ("running", "preparing") and not also_ended)
        if over or cluster is None or not record.ranks:
            message = f"run {run_id} is not running: {record.state}{', ' + record.reason if record.reason else ''}"
            raise UsageError(message, hint=f"cloudgpu logs {run_id}")
        check_identity(cluster, self._cloud)
        return record, cluster

    def _running(self, stages: Stages) -> Running:
        return Running(self._home, self._records, self._clock, self._dial, stages, self._say)


def found_run(records: Records, run_id: str) -> RunRecord:
    """A run by its id; an empty id is the latest.

    Raises:
        UsageError: There is none.
    """
    runs = records.runs()
    if not run_id and runs:
        return runs[-1]
    record = records.run(run_id) if run_id else None
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
            else (f"run {record.run_id} started no rank")
        )
        raise UsageError(message)
    logs = LogStore(home.run(record.run_id))
    for one in ranks if rank is None else [rank]:
        for line in logs.lines(one):
            yield one, line
