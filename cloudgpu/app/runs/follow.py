"""Connect to the nodes of a run, stage and start the run, follow it until it finishes and download its outputs."""

import fcntl
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from cloudgpu import files
from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.app.runs.service_probe import require_free_ports
from cloudgpu.app.runs.service_urls import services_of, token_variables
from cloudgpu.app.runs.services import ServiceProbes
from cloudgpu.app.runs.stages import Stages
from cloudgpu.app.runs.unreachable_nodes import UnreachableNodes
from cloudgpu.backends.base import Context
from cloudgpu.errors import ConnectError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.bootstrap import image_cleanup_script
from cloudgpu.paths import unwritable_error
from cloudgpu.run import node_health
from cloudgpu.run.agent import Agent, install_agent
from cloudgpu.run.collect import Collected, collect
from cloudgpu.run.containers.images import provide_image
from cloudgpu.run.containers.logins import RegistryLogin
from cloudgpu.run.data import uploads
from cloudgpu.run.data.checkpoints import start_checkpoint_upload
from cloudgpu.run.data.files import Files
from cloudgpu.run.data.prepare import release_datasets_on_failure
from cloudgpu.run.follow import follow
from cloudgpu.run.job import Job
from cloudgpu.run.metrics import Measured, Metrics
from cloudgpu.run.progress import MetricValue, Note, RankLine
from cloudgpu.run.stage import Staged, send_workdir, stage
from cloudgpu.run.start import container_line, describe_gang, rank_launches, start
from cloudgpu.run.verdict import Chunk, Verdict
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_and_run_records import RunRecord, RunState
from cloudgpu.state.inventories import mark_booted_nodes

_GRACE_S = 10
_CLEANING_S = 600.0
_LONGEST_SHOWN = 2000
_STATES: Mapping[str, RunState] = {"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled"}


@dataclass(frozen=True)
class FollowResult:
    """The final status of a run, with its metrics and last log lines."""

    verdict: Verdict
    measured: tuple[Measured, ...]
    tail: tuple[str, ...]
    """Last lines of the rank that failed first."""


class FollowedRun:
    """A run on the nodes of one inventory. Leaving the context disconnects from the nodes; the ranks keep running."""

    def __init__(self, context: Context, stages: Stages) -> None:
        self._context = context
        self._stages = stages
        self._hosts = ExitStack()
        self._agents: list[Agent] = []
        self._inventory = Inventory("", ())
        self._started = self._stopping = False

    def __enter__(self) -> "FollowedRun":
        return self

    def __exit__(self, *exc: object) -> None:
        self._hosts.close()

    @property
    def connected(self) -> bool:
        """Whether the nodes are connected."""
        return bool(self._agents)

    def connect(self, inventory: Inventory) -> None:
        """Connect to every node and install the agent.

        Raises:
            ConnectError: A node is unreachable.
            HostKeyError: The host key of a node is unknown.
        """
        with self._stages.stage("connect"):
            inventory = mark_booted_nodes(self._context.records, inventory, self._context.clock.now())
            hosts = self._context.backend.connect(inventory.nodes, self._context.emit)
            for host in hosts:
                self._hosts.callback(host.close)
            self._agents = list(all_or_raise(run_on_all(hosts, install_agent)).values())
            self._inventory = inventory

    def forget(self, instance_ids: Collection[str]) -> None:
        """Stop using nodes that are terminated."""
        self._agents = [agent for agent in self._agents if agent.host.node.instance_id not in instance_ids]

    def gate(self) -> None:
        """Check that every node has the hardware of its instance type.

        Raises:
            RemoteCommandError: A node failed the check.
        """
        with self._stages.stage("gate"):
            for health in node_health.check_nodes(self._agents, self._context.clock, self._context.emit):
                gpus = f"{len(health.gpus)} x {health.gpus[0]}" if health.gpus else "no GPU"
                mark = " (simulated)" if health.simulated and "simulated" not in gpus else ""
                self._context.emit(Note(f"{gpus}{mark}, Python {health.python}", health.node))

    def strip(self) -> None:
        """Remove host-specific data, including SSH keys, from every node. No login is possible afterwards.

        Raises:
            RemoteCommandError: The cleanup failed on a node.
        """
        with self._stages.stage("strip"):
            for agent in self._agents:
                agent.host.run(
                    RemoteCommand("sudo", "sh", "-s", agent.home),
                    stdin=image_cleanup_script().encode(),
                    timeout_s=_CLEANING_S,
                )

    def stage(self, job: Job, base: Path, files: Files, login: RegistryLogin | None = None) -> Staged:
        """Provide the work directory, the data, and the environment or container image on every node.

        Raises:
            RemoteCommandError: Staging failed on a node.
        """
        with self._stages.stage("stage"), release_datasets_on_failure(job, self._agents):
            with self._only_sender(job):
                sent = send_workdir(job, self._agents, base, self._context.emit)
            services = self._context.backend.bucket_service
            staged = stage(job, self._agents, files, base, self._context.emit, sent_bytes=sent, services=services)
            container = job.recipe.environment.container
            if container is None or job.inventory.head.simulated:
                return staged
            return replace(staged, images=provide_image(container, self._agents, login, self._context.emit))

    def ranks(self, job: Job, staged: Staged) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each node by node index, without starting them.

        Raises:
            RecipeError: The recipe's command is invalid.
        """
        gang = rank_launches(job, self._agents, staged)
        return {str(node.node_index): tuple(rank.rank for rank in node.ranks) for node in gang}

    def start(self, job: Job, staged: Staged, secrets: Mapping[str, str]) -> None:
        """Start every rank.

        Raises:
            RemoteCommandError: An agent reported an error; the ranks that were already started have been stopped.
        """
        with self._stages.stage("start"), release_datasets_on_failure(job, self._agents):
            start_checkpoint_upload(job, self._agents, self._context.backend.bucket_service)
            uploads.start_uploads(job, self._agents, self._context.backend.bucket_service)
            lines = (
                container_line(job, self._agents, staged),
                *describe_gang(rank_launches(job, self._agents, staged)),
            )
            for line in filter(None, lines):
                self._context.emit(Note(line))
            services = services_of(job.recipe, job.run_id, self._context.home)
            require_free_ports(self._head(), services)
            start(job, self._agents, staged, {**secrets, **token_variables(services)})
            self._started = True

    def follow(self, record: RunRecord, *, open_services: bool = True) -> FollowResult:
        """Follow the run until its final status is known. Store its output in logs and open its services locally.

        Raises:
            ConnectError: A node remains unreachable; the run may still be running.
        """
        head = self._head() if open_services and not self._stopping else None
        with ServiceProbes(self._context, record, head, lambda: self.stop(record), fresh=self._started) as services:
            return self._followed(record, services)

    def _followed(self, record: RunRecord, services: ServiceProbes) -> FollowResult:
        metrics, logs = Metrics(recipe_of(record).metrics), services.logs(self._context.home.run(record.run_id))
        for rank in sorted(rank for ranks in record.ranks.values() for rank in ranks):
            for line in logs.lines(rank):
                metrics.read(line, rank)
        verdict = Verdict("lost")
        unreachable = UnreachableNodes(self._context, record)
        try:
            for item in follow(
                self._agents, self._ranks(record), self._run_dirs(record), logs, self._context.clock, unreachable
            ):
                if isinstance(item, Chunk):
                    self._emit_lines(services.shown(item), metrics)
                else:
                    verdict = item
        except ConnectError as err:
            # The run may continue as long as one node is running.
            if not unreachable.all_terminated():
                raise
            verdict = Verdict("lost", reason=err.message)
        verdict = services.judged(verdict)
        tail = () if verdict.rank is None else tuple(logs.tail(verdict.rank))
        return FollowResult(verdict, metrics.measured(), tail)

    def stop(self, record: RunRecord) -> None:
        """Stop the run on every node after the grace period for a checkpoint. The cluster keeps running.

        Raises:
            RemoteCommandError: An agent reported an error.
        """
        self._stopping = True
        directories = self._run_dirs(record)
        by_index = {agent.host.node.index: agent for agent in self._agents}
        checkpoint = recipe_of(record).checkpoint
        request = {
            "signal": checkpoint.signal if checkpoint else "SIGTERM",
            "grace_s": int(checkpoint.grace) if checkpoint else _GRACE_S,
        }
        answers = run_on_all(
            [agent.host for agent in self._agents],
            lambda host: by_index[host.node.index].ask("stop", {**request, "run_dir": directories[host.node.index]}),
        )
        all_or_raise(answers)

    def collect(self, record: RunRecord, instance_ids: Sequence[str]) -> Collected:
        """Download the outputs, and report the terminated instances of the cluster, whose data is lost."""
        job = Job(record.run_id, recipe_of(record), self._inventory, "")
        collected = collect(job, self._agents, self._context.home.run(record.run_id).outputs)
        here = {agent.host.node.index for agent in self._agents}
        terminated = tuple(
            f"node {index} ({instance_id}) is terminated and its data is lost"
            for index, instance_id in enumerate(instance_ids)
            if index not in here
        )
        return replace(collected, missing=() if terminated else collected.missing, gone=terminated)

    @contextmanager
    def _only_sender(self, job: Job) -> Iterator[None]:
        """Allow only one run of a recipe at a time to upload the work directory, which all runs on a cluster share.

        Only this state home can reach the cluster's nodes, so a lock file here is enough. The kernel releases the lock
        even if the process is killed.
        """
        path = self._context.home.cluster(self._inventory.cluster).root / f"sending-{job.recipe.name}"
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = files.open_for_appending(path)
        except OSError as err:
            raise unwritable_error(path, err) from err
        with held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._context.emit(
                    Note(f"waiting for another run that is uploading the work directory of {job.recipe.name}")
                )
                fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def _emit_lines(self, chunk: Chunk, metrics: Metrics) -> None:
        for line in chunk.raw.decode(errors="replace").splitlines():
            self._context.emit(RankLine(chunk.rank, _shortened(line)))
            for name, value, unit in metrics.read(line, chunk.rank):
                self._context.emit(MetricValue(name, value, unit))

    def _head(self) -> Host | None:
        """Return the node that services run on, or None if it is terminated."""
        return next((agent.host for agent in self._agents if agent.host.node.index == 0), None)

    def _ranks(self, record: RunRecord) -> dict[int, Sequence[int]]:
        return {int(node): ranks for node, ranks in record.ranks.items()}

    def _run_dirs(self, record: RunRecord) -> dict[int, str]:
        return {agent.host.node.index: f"{agent.home}/.cloudgpu/runs/{record.run_id}" for agent in self._agents}


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_SHOWN:
        return line
    return f"{line[:_LONGEST_SHOWN]} ... ({len(line)} characters; the log contains the whole line)"


def run_state(verdict: Verdict) -> RunState:
    """Return the run's state for a final status. An unknown status becomes `lost`, never a success."""
    return _STATES.get(verdict.state, "lost")


def with_final_status(record: RunRecord, followed: FollowResult) -> RunRecord:
    """Return the run's record with its final status and metrics."""
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
    )
    missed = [metric for metric in followed.measured if metric.missed_target]
    if record.state == "succeeded" and missed:
        worst = missed[0]
        minimum = f"{worst.metric.at_least:g}"
        reason = (
            f"{worst.name} was never printed; the required minimum is {minimum}"
            if worst.value is None
            else f"{worst.name} reached {worst.value:g}, below the required minimum of {minimum}"
        )
        return replace(record, state="failed", reason=reason)
    return record
