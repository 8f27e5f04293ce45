"""The middle of `train`, shared with `attach`: follow a started gang to its verdict and bring back what it made."""

import fcntl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from cloudgpu import files
from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.app.runs.service_probe import check_free
from cloudgpu.app.runs.service_urls import secrets_of, services_of
from cloudgpu.app.runs.services import Serving
from cloudgpu.app.runs.stages import Stages
from cloudgpu.app.runs.unreachable_nodes import UnreachableNodes
from cloudgpu.backends.base import Connect
from cloudgpu.backends.context import Context
from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.bootstrap import cleaning
from cloudgpu.paths import unwritable
from cloudgpu.run import gate, uploads
from cloudgpu.run.agent import Agent, install
from cloudgpu.run.checkpoints import keep
from cloudgpu.run.collect import Collected, collect
from cloudgpu.run.data import left_clean
from cloudgpu.run.files import Files
from cloudgpu.run.follow import follow
from cloudgpu.run.images import provide_image
from cloudgpu.run.job import Job
from cloudgpu.run.logins import Login
from cloudgpu.run.metrics import Measured, Metrics
from cloudgpu.run.progress import MetricValue, Note, RankLine
from cloudgpu.run.stage import Staged, send_workdir, stage
from cloudgpu.run.start import container_line, launches, start, told
from cloudgpu.run.verdict import Chunk, Verdict
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Command
from cloudgpu.ssh.fanout import all_or_raise, on_all
from cloudgpu.state.inventories import with_known_boots
from cloudgpu.state.records import RunRecord, RunState

_GRACE_S = 10
_CLEANING_S = 600.0
_LONGEST_SHOWN = 2000
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

    def __init__(self, context: Context, connect: Connect, stages: Stages) -> None:
        self._context = context
        self._connect = connect
        self._stages = stages
        self._hosts = ExitStack()
        self._agents: list[Agent] = []
        self._inventory = Inventory("", ())
        self._started = self._stopping = False

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exc: object) -> None:
        self._hosts.close()

    @property
    def connected(self) -> bool:
        """Whether the nodes were reached."""
        return bool(self._agents)

    def connect(self, inventory: Inventory) -> None:
        """Reach every node and put the agent there.

        Raises:
            ConnectError: A node cannot be reached; HostKeyError when it is a stranger.
        """
        with self._stages.stage("connect"):
            inventory = with_known_boots(self._context.records, inventory, self._context.clock.now())
            hosts = self._connect(inventory.nodes, self._context.emit)
            for host in hosts:
                self._hosts.callback(host.close)
            self._agents = list(all_or_raise(on_all(hosts, install)).values())
            self._inventory = inventory

    def forget(self, instance_ids: Collection[str]) -> None:
        """Ask nothing of these nodes any more: they are gone."""
        self._agents = [agent for agent in self._agents if agent.host.node.instance_id not in instance_ids]

    def gate(self) -> None:
        """Hold every node against what was bought.

        Raises:
            RemoteCommandError: A node is not fit to run.
        """
        with self._stages.stage("gate"):
            for health in gate.check(self._agents, self._context.clock, self._context.emit):
                gpus = f"{len(health.gpus)} x {health.gpus[0]}" if health.gpus else "no GPU"
                mark = " (simulated)" if health.simulated and "simulated" not in gpus else ""
                self._context.emit(Note(f"{gpus}{mark}, Python {health.python}", health.node))

    def strip(self) -> None:
        """Take from every node what belongs to it alone; nobody can log in there afterwards.

        Raises:
            RemoteCommandError: It failed on a node.
        """
        with self._stages.stage("strip"):
            for agent in self._agents:
                agent.host.run(
                    Command("sudo", "sh", "-s", agent.home), stdin=cleaning().encode(), timeout_s=_CLEANING_S
                )

    def stage(self, job: Job, base: Path, files: Files, login: Login | None = None) -> Staged:
        """Work directory, data, and environment or container image on every node.

        Raises:
            RemoteCommandError: Staging failed on a node.
        """
        with self._stages.stage("stage"), left_clean(job, self._agents):
            with self._only_sender(job):
                sent = send_workdir(job, self._agents, base, self._context.emit)
            services = self._context.cloud.bucket_service
            staged = stage(job, self._agents, files, base, self._context.emit, sent_bytes=sent, services=services)
            container = job.recipe.environment.container
            if container is None or job.inventory.head.simulated:
                return staged
            return replace(staged, images=provide_image(container, self._agents, login, self._context.emit))

    def ranks(self, job: Job, staged: Staged) -> dict[str, tuple[int, ...]]:
        """The ranks of every node, before any is started.

        Raises:
            RecipeError: The recipe's command is wrong.
        """
        gang = launches(job, self._agents, staged)
        return {str(node.node_index): tuple(rank.rank for rank in node.ranks) for node in gang}

    def start(self, job: Job, staged: Staged, secrets: Mapping[str, str]) -> None:
        """Start every rank.

        Raises:
            RemoteCommandError: An agent refused; those that had begun were told to stop.
        """
        with self._stages.stage("start"), left_clean(job, self._agents):
            keep(job, self._agents, self._context.cloud.bucket_service)
            uploads.prepare(job, self._agents, self._context.cloud.bucket_service)
            lines = (container_line(job, self._agents, staged), *told(launches(job, self._agents, staged)))
            for line in filter(None, lines):
                self._context.emit(Note(line))
            services = services_of(job.recipe, job.run_id, self._context.home)
            check_free(self._head(), services)
            start(job, self._agents, staged, {**secrets, **secrets_of(services)})
            self._started = True

    def follow(self, record: RunRecord, *, open_services: bool = True) -> Followed:
        """Watch until the gang's verdict; every line is kept in the run's logs. Services are opened on this machine.

        Raises:
            ConnectError: A node stayed out of reach; the run may still go on.
        """
        head = self._head() if open_services and not self._stopping else None
        with Serving(self._context, record, head, lambda: self.stop(record), fresh=self._started) as services:
            return self._followed(record, services)

    def _followed(self, record: RunRecord, services: Serving) -> Followed:
        metrics, logs = Metrics(recipe_of(record).metrics), services.logs(self._context.home.run(record.run_id))
        for rank in sorted(rank for ranks in record.ranks.values() for rank in ranks):
            for line in logs.lines(rank):
                metrics.read(line, rank)
        verdict = Verdict("lost")
        silence = UnreachableNodes(self._context, record)
        try:
            for item in follow(
                self._agents, self._ranks(record), self._run_dirs(record), logs, self._context.clock, silence
            ):
                if isinstance(item, Chunk):
                    self._tell(services.shown(item), metrics)
                else:
                    verdict = item
        except ConnectError as err:
            # As long as one node is there, the run may go on.
            if not silence.all_gone():
                raise
            verdict = Verdict("lost", reason=err.message)
        verdict = services.judged(verdict)
        tail = () if verdict.rank is None else tuple(logs.tail(verdict.rank))
        return Followed(verdict, metrics.measured(), tail)

    def stop(self, record: RunRecord) -> None:
        """End the run on every node, after the time that its recipe gives for a checkpoint; its cluster stays.

        Raises:
            RemoteCommandError: An agent refused.
        """
        self._stopping = True
        directories = self._run_dirs(record)
        by_index = {agent.host.node.index: agent for agent in self._agents}
        checkpoint = recipe_of(record).checkpoint
        request = {
            "signal": checkpoint.signal if checkpoint else "SIGTERM",
            "grace_s": int(checkpoint.grace) if checkpoint else _GRACE_S,
        }
        answers = on_all(
            [agent.host for agent in self._agents],
            lambda host: by_index[host.node.index].ask("stop", {**request, "run_dir": directories[host.node.index]}),
        )
        all_or_raise(answers)

    def collect(self, record: RunRecord, instance_ids: Sequence[str]) -> Collected:
        """Bring the outputs back; of the cluster's instances, in order, those that are gone are named."""
        job = Job(record.run_id, recipe_of(record), self._inventory, "")
        collected = collect(job, self._agents, self._context.home.run(record.run_id).outputs)
        here = {agent.host.node.index for agent in self._agents}
        gone = tuple(
            f"node {index} ({one}) is gone, and what it held"
            for index, one in enumerate(instance_ids)
            if index not in here
        )
        return replace(collected, missing=() if gone else collected.missing, gone=gone)

    @contextmanager
    def _only_sender(self, job: Job) -> Iterator[None]:
        """Let one run of a recipe at a time send its work directory to a cluster, or one gets what another sent.

        Only this home can reach the cluster's nodes, so a lock of this home's is enough; the kernel drops it.
        """
        path = self._context.home.cluster(self._inventory.cluster).root / f"sending-{job.recipe.name}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = files.open_for_appending(path)
        except OSError as err:
            raise unwritable(path, err) from err
        with held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._context.emit(Note(f"waiting for another run that sends {job.recipe.name}'s work directory"))
                fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _tell(self, chunk: Chunk, metrics: Metrics) -> None:
        for line in chunk.raw.decode(errors="replace").splitlines():
            self._context.emit(RankLine(chunk.rank, _shortened(line)))
            for name, value, unit in metrics.read(line, chunk.rank):
                self._context.emit(MetricValue(name, value, unit))

    def _head(self) -> Host | None:
        """The node that services run on; None where it is gone."""
        return next((agent.host for agent in self._agents if agent.host.node.index == 0), None)

    def _ranks(self, record: RunRecord) -> dict[int, Sequence[int]]:
        return {int(node): ranks for node, ranks in record.ranks.items()}

    def _run_dirs(self, record: RunRecord) -> dict[int, str]:
        return {agent.host.node.index: f"{agent.home}/.cloudgpu/runs/{record.run_id}" for agent in self._agents}


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_SHOWN:
        return line
    return f"{line[:_LONGEST_SHOWN]} ... ({len(line)} characters; the log has them all)"


def run_state(verdict: Verdict) -> RunState:
    """The run's state after the gang's verdict; anything unknown is `lost`, never a success."""
    return _STATES.get(verdict.state, "lost")


def judged(record: RunRecord, followed: Followed) -> RunRecord:
    """The run's record after its verdict and its metrics."""
    verdict = followed.verdict
    metrics = {one.name: one.value for one in followed.measured if one.value is not None and isfinite(one.value)}
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
