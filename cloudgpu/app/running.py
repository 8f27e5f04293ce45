"""The middle of `train`, shared with `attach`: follow a started gang to its verdict and bring back what it made."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from cloudgpu.app.happenings import Say
from cloudgpu.app.ports import Dial
from cloudgpu.app.records import Records, RunRecord, RunState
from cloudgpu.app.stages import Stages
from cloudgpu.clock import Clock
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import Home
from cloudgpu.recipe.schema import Recipe
from cloudgpu.remote.fanout import all_or_raise, on_all
from cloudgpu.run import gate
from cloudgpu.run.agent import Agent, install
from cloudgpu.run.collect import Collected, collect
from cloudgpu.run.files import Files
from cloudgpu.run.follow import Chunk, LogStore, Verdict, follow
from cloudgpu.run.job import Job
from cloudgpu.run.metrics import Measured, Metrics
from cloudgpu.run.progress import MetricValue, Note, RankLine
from cloudgpu.run.stage import Staged, stage
from cloudgpu.run.start import command_line, launches, start

_STATES: Mapping[str, RunState] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}


@dataclass(frozen=True)
class Followed:
    """A gang that ended."""

    verdict: Verdict
    measured: tuple[Measured, ...]
    tail: tuple[str, ...]
    """Last lines of the rank that failed first."""


class Running:
    """Runs on one inventory. Close it to hang up; the ranks go on."""

    def __init__(self, home: Home, records: Records, clock: Clock, dial: Dial, stages: Stages, say: Say) -> None:
        self._home = home
        self._records = records
        self._clock = clock
        self._dial = dial
        self._stages = stages
        self._say = say
        self._hosts = ExitStack()
        self._agents: list[Agent] = []

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exc: object) -> None:
        self._hosts.close()

    def connect(self, inventory: Inventory) -> None:
        """Reach every node and put the agent there.

        Raises:
            ConnectError: A node cannot be reached; HostKeyError when it is a stranger.
        """
        self._connect(inventory.nodes)

    def reconnect(self, inventory: Inventory, states: Mapping[str, str]) -> None:
        """Reach the nodes that are left of a run that was started before, and name those that are gone.

        Raises:
            ConnectError: A node that the cloud calls alive cannot be reached.
        """
        gone = dead(inventory, states)
        for node in gone:
            self._say(Note(f"{node.instance_id} is {states[node.instance_id]}", node.index))
        self._connect([node for node in inventory.nodes if node not in gone])

    def forget(self, nodes: Sequence[Node]) -> None:
        """Ask nothing of these nodes any more: they are gone."""
        indexes = {node.index for node in nodes}
        self._agents = [agent for agent in self._agents if agent.host.node.index not in indexes]

    def _connect(self, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        with self._stages.stage("connect"):
            hosts = self._dial(nodes, self._say)
            for host in hosts:
                self._hosts.callback(host.close)
            self._agents = list(all_or_raise(on_all(hosts, install)).values())

    def gate(self) -> None:
        """Hold every node against what was bought.

        Raises:
            RemoteCommandError: A node is not fit to run.
        """
        with self._stages.stage("gate"):
            for health in gate.check(self._agents, self._clock, self._say):
                mark = " (simulated)" if health.simulated else ""
                gpus = f"{len(health.gpus)} x {health.gpus[0]}" if health.gpus else "no GPU"
                self._say(Note(f"{gpus}{mark}, Python {health.python}", health.node))

    def stage(self, job: Job, base: Path, files: Files) -> Staged:
        """Work directory, data and environment on every node.

        Raises:
            RemoteCommandError: Staging failed on a node.
        """
        with self._stages.stage("stage"):
            return stage(job, self._agents, base, files, self._say)

    def start(self, job: Job, staged: Staged, secrets: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        """Start every rank; returns the ranks of every node.

        Raises:
            RemoteCommandError: An agent refused.
        """
        with self._stages.stage("start"):
            self._say(Note(f"rank 0: {command_line(launches(job, self._agents, staged)[0])}"))
            gang = start(job, self._agents, staged, secrets)
        return {str(node.node_index): tuple(rank.rank for rank in node.ranks) for node in gang}

    def follow(self, record: RunRecord, recipe: Recipe) -> Followed:
        """Watch until the gang's verdict; every line is kept in the run's logs.

        Raises:
            ConnectError: A node stayed out of reach; the run may still go on.
        """
        metrics, logs = Metrics(recipe.metrics), LogStore(self._home.run(record.run_id))
        for rank in sorted(rank for ranks in record.ranks.values() for rank in ranks):
            for line in logs.lines(rank):
                metrics.read(line)
        if not self._agents:
            return Followed(Verdict("lost", reason="none of its nodes is left"), metrics.measured(), ())
        verdict = Verdict("lost")
        for item in follow(self._agents, self._ranks(record), self._run_dirs(record), logs, self._clock):
            if isinstance(item, Chunk):
                self._tell(item, metrics)
            else:
                verdict = item
        tail = () if verdict.rank is None else tuple(logs.tail(verdict.rank))
        return Followed(verdict, metrics.measured(), tail)

    def stop(self, record: RunRecord) -> None:
        """End the run on every node; its cluster stays.

        Raises:
            RemoteCommandError: An agent refused.
        """
        directories = self._run_dirs(record)
        by_index = {agent.host.node.index: agent for agent in self._agents}
        request = {"signal": "SIGTERM", "grace_s": 10}
        answers = on_all(
            [agent.host for agent in self._agents],
            lambda host: by_index[host.node.index].ask("stop", {**request, "run_dir": directories[host.node.index]}),
        )
        all_or_raise(answers)

    def collect(self, job: Job) -> Collected:
        """Bring the outputs back."""
        return collect(job, self._agents, self._home.run(job.run_id).outputs)

    def _tell(self, chunk: Chunk, metrics: Metrics) -> None:
        for line in chunk.text.encode(errors="surrogateescape").decode(errors="replace").splitlines():
            self._say(RankLine(chunk.rank, line))
            for name, value, unit in metrics.read(line):
                self._say(MetricValue(name, value, unit))

    def _ranks(self, record: RunRecord) -> dict[int, Sequence[int]]:
        return {int(node): ranks for node, ranks in record.ranks.items()}

    def _run_dirs(self, record: RunRecord) -> dict[int, str]:
        return {agent.host.node.index: f"{agent.home}/.cloudgpu/runs/{record.run_id}" for agent in self._agents}


def dead(inventory: Inventory, states: Mapping[str, str]) -> list[Node]:
    """The nodes that the cloud no longer calls alive; one that it says nothing about is not among them."""
    alive = ("running", "pending")
    return [node for node in inventory.nodes if states.get(node.instance_id, "running") not in alive]


def run_state(verdict: Verdict) -> RunState:
    """The run's state after the gang's verdict; anything unknown is `lost`, never a success."""
    return _STATES.get(verdict.state, "lost")


def judged(record: RunRecord, followed: Followed) -> RunRecord:
    """The run's record after its verdict and its metrics."""
    verdict = followed.verdict
    metrics = {one.name: one.value for one in followed.measured if one.value is not None}
    record = replace(
        record,
        state=run_state(verdict),
        metrics=metrics,
        reason=verdict.reason,
        failed_rank=verdict.rank,
        exit_code=verdict.exit_code,
    )
    missed = [one for one in followed.measured if one.missed]
    if record.state == "succeeded" and missed:
        worst = missed[0]
        reached = "was never printed" if worst.value is None else f"reached {worst.value:g}"
        return replace(record, state="failed", reason=f"{worst.name} {reached}, below {worst.metric.at_least:g}")
    return record
