"""The connected nodes of a run: check them, stage and start the run there, follow it, and download its outputs."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cloudgpu.app.runs.concurrency import BusyNodes, only_sender
from cloudgpu.app.runs.lost_nodes import (
    SpotNotices,
    UnreachableNodes,
    is_spot,
    save_logs_of_failed_nodes,
    terminated_node_lines,
)
from cloudgpu.app.runs.services import ServiceProbes, require_free_ports, services_of, token_variables
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.node_boot import record_checked_nodes
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.errors import CloudGpuError, ConnectError
from cloudgpu.launch.environment import sets_own_log, watches_network
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.bootstrap import image_cleanup_script
from cloudgpu.run import node_health, s3_transfers
from cloudgpu.run.agent import Agent, AgentReplyError, install_agent
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.collect import Collected, collect
from cloudgpu.run.dataset_copies import Files
from cloudgpu.run.dataset_staging import release_datasets_on_failure
from cloudgpu.run.follow import copy_output, follow
from cloudgpu.run.job import Job, recipe_of
from cloudgpu.run.log_store import LogStore
from cloudgpu.run.metrics import Measured, Metrics
from cloudgpu.run.progress import MetricValue, Note, RankOutput, Stages
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.run.s3_transfers import start_checkpoint_upload
from cloudgpu.run.stage import NO_SECRETS, Staged, send_workdir, stage_images, stage_job
from cloudgpu.run.start import container_line, describe_gang, rank_launches, start
from cloudgpu.run.transport import NodeTransport, RunNetwork
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.nodes import mark_booted_nodes
from cloudgpu.state.run_records import RunRecord
from cloudgpu.text import command, plural

_GRACE_S = 10
_CLEANING_S = 600.0
_REBOOT_POLL_S = 2.0
_BUSY_POLL_S = 1.0
_START_ATTEMPTS = 3
_LONGEST_SHOWN = 2000


@dataclass(frozen=True)
class FollowResult:
    """The final status of a run, with its metrics and last log lines."""

    verdict: Verdict
    measured: tuple[Measured, ...]
    tail: tuple[str, ...]
    """Last lines of the rank that failed first."""
    transport: str = ""
    """Network between the nodes: `efa`, `tcp`, another name or `unknown`; empty if it was not watched."""
    ran_s: float | None = None
    """Seconds from the start of the first rank to the end of the last, by the clocks of the nodes; None if unknown."""


class RunNodes:
    """The nodes of one inventory. Leaving the context disconnects from them; the ranks keep running."""

    def __init__(self, context: Context, stages: Stages, *, log_folder: Path | None = None) -> None:
        """Prepare the connection.

        Args:
            context: The command's context.
            stages: Receives the duration of every stage.
            log_folder: Folder of the run, for the logs of nodes that fail; None for the folder of the cluster.
        """
        self._context = context
        self._stages = stages
        self._log_folder = log_folder
        self._hosts = ExitStack()
        self._agents: list[Agent] = []
        self._inventory = Inventory("", ())
        self._started = False  # by this command: then a main service that is not ready in time fails the run
        self._stopping = False  # by this command: then the services are not opened for the last lines of output

    def __enter__(self) -> "RunNodes":
        return self

    def __exit__(self, *exc: object) -> None:
        self._hosts.close()

    @property
    def connected(self) -> bool:
        """Whether at least one node is connected."""
        return bool(self._agents)

    def connect(self, inventory: Inventory) -> None:
        """Connect to every node and install the agent.

        Raises:
            ConnectError: A node is unreachable.
            HostKeyError: A node's host key is unknown or does not match.
        """
        with self._stages.stage("connect"), self._saving_node_logs(inventory):
            inventory = mark_booted_nodes(self._context.records, inventory, self._context.clock.now())
            hosts = self._context.backend.connect(inventory.nodes, self._context.emit)
            for host in hosts:
                self._hosts.callback(host.close)
            self._agents = list(all_or_raise(run_on_all(hosts, self._install_agent)).values())
            self._inventory = inventory

    @contextmanager
    def _saving_node_logs(self, inventory: Inventory) -> Iterator[None]:
        try:
            yield
        except CloudGpuError as err:
            folder = self._log_folder or self._context.home.cluster(inventory.cluster).root
            save_logs_of_failed_nodes(self._context, err, inventory, self._agents, folder)
            raise

    def _install_agent(self, host: Host) -> Agent:
        """Install the agent. A node that may still be at its first boot may reboot in between, so this is retried."""
        clock = self._context.clock
        deadline = clock.monotonic() + (0 if host.node.own or host.node.booted else node_health.REBOOT_S)
        while True:
            try:
                return install_agent(host)
            except ConnectError as err:
                if not err.retryable or clock.monotonic() >= deadline:
                    raise
                clock.sleep(_REBOOT_POLL_S)

    def forget(self, instance_ids: Collection[str]) -> None:
        """Stop using these nodes, which are terminated."""
        self._agents = [agent for agent in self._agents if agent.host.node.instance_id not in instance_ids]

    def gate(self) -> None:
        """Wait for every node's bootstrap, then check that the node has the hardware of its instance type.

        Raises:
            RemoteCommandError: A node failed the check.
            ConnectError: A node is unreachable.
            StateError: The state home cannot be written.
        """
        with self._stages.stage("gate"), self._saving_node_logs(self._inventory):
            for health in node_health.check_nodes(self._agents, self._context.clock, self._context.emit):
                gpus = f"{len(health.gpus)} x {health.gpus[0]}" if health.gpus else "no GPU"
                mark = " (simulated)" if health.simulated and "simulated" not in gpus else ""
                efa = f", {plural(health.efa, 'EFA device')}" if health.efa else ""
                # A simulated node has no CUDA library.
                cuda = ", CUDA unknown" if health.cuda == "unknown" and not health.simulated else ""
                self._context.emit(Note(f"{gpus}{mark}{cuda}{efa}, Python {health.python}", health.node, detail=True))
        record_checked_nodes(self._context, self._inventory)

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

    def prepare(
        self,
        job: Job,
        base: Path,
        files: Files,
        login: RegistryLogin | None = None,
        secrets: Mapping[str, str] = NO_SECRETS,
    ) -> Staged:
        """Prepare the work directory, the data, and the Python environment or container image on every node.

        `secrets` are the values of the recipe's secrets, for its setup.

        Raises:
            RemoteCommandError: Staging failed on a node.
        """
        with self._stages.stage("stage"), release_datasets_on_failure(job, self._agents):
            with only_sender(self._context, self._inventory.cluster, job.recipe.name):
                sent = send_workdir(job, self._agents, base, self._context.emit)
            bucket_service, emit = self._context.backend.bucket_service, self._context.emit
            staged = stage_job(
                job, self._agents, files, base, emit, sent_bytes=sent, bucket_service=bucket_service, secrets=secrets
            )
            return stage_images(job, self._agents, staged, base, emit, login=login, secrets=secrets)

    def ranks(self, job: Job, staged: Staged) -> dict[str, tuple[int, ...]]:
        """Return the ranks of each node by node index, without starting them.

        Raises:
            RecipeError: The recipe's command is invalid.
        """
        gang = rank_launches(job, self._agents, staged)
        return {str(node.node_index): tuple(rank.rank for rank in node.ranks) for node in gang}

    def require_idle(self, busy: BusyNodes) -> None:
        """Check that no other run is in progress on the nodes, or wait for it; see `BusyNodes.require_idle`."""
        busy.require_idle(self._agents)

    def start(self, job: Job, staged: Staged, secrets: Mapping[str, str], busy: BusyNodes) -> None:
        """Start the uploads of checkpoints and outputs, then every rank.

        Raises:
            UsageError: The port of a service is already in use.
            BusyError: Another run was started on the nodes in the meantime, and the run neither waits nor shares.
            RemoteCommandError: An agent reported an error; the ranks that were already started have been stopped.
        """
        with self._stages.stage("start"):
            with release_datasets_on_failure(job, self._agents):
                start_checkpoint_upload(job, self._agents, self._context.backend.bucket_service)
                s3_transfers.start_uploads(job, self._agents, self._context.backend.bucket_service)
                gang = describe_gang(rank_launches(job, self._agents, staged))
                for line in filter(None, (container_line(job, self._agents, staged), *gang)):
                    self._context.emit(Note(line, detail=True))
                own = sets_own_log(job.recipe) if watches_network(job.inventory) else ()
                if own:
                    names = ", ".join(own)
                    self._context.emit(Note(f"the recipe sets {names}, so only the ranks' output shows the network"))
                services = services_of(job.recipe, job.run_id, self._context.home)
                require_free_ports(self._head(), services)
            # After Ctrl-C, ranks may run, and `attach` releases the datasets at their end.
            with release_datasets_on_failure(job, self._agents, (CloudGpuError,)):
                self._start_ranks(job, staged, {**secrets, **token_variables(services)}, busy)
            self._started = True

    def _start_ranks(self, job: Job, staged: Staged, secrets: Mapping[str, str], busy: BusyNodes) -> None:
        for attempt in itertools.count(1):
            try:
                start(job, self._agents, staged, secrets, alone=busy.alone)
            except AgentReplyError as err:
                if err.code != "busy":
                    raise
                # Another run was started after the check before the staging.
                busy.require_idle(self._agents)
                if attempt >= _START_ATTEMPTS and not busy.waits:
                    raise  # a node contradicts itself
                self._context.clock.sleep(_BUSY_POLL_S)
            else:
                return

    def copy_output(self, record: RunRecord) -> None:
        """Copy the output that the ranks have written so far to this machine.

        Raises:
            ConnectError: A node is unreachable.
        """
        with ServiceProbes(self._context, record, None, lambda: None, fresh=False) as probes:
            logs = probes.logs(self._context.home.run(record.run_id))
            copy_output(self._agents, self._ranks(record), self._run_dirs(record), logs)

    def follow(self, record: RunRecord, *, open_services: bool = True) -> FollowResult:
        """Follow the run until its final status is known.

        Store the output of the ranks on this machine, and open the run's services here unless `open_services` is False.

        Raises:
            ConnectError: A node remains unreachable; the run may still be running.
        """
        head = self._head() if open_services and not self._stopping else None
        with ServiceProbes(self._context, record, head, lambda: self.stop(record), fresh=self._started) as probes:
            return self._followed(record, probes)

    def _followed(self, record: RunRecord, probes: ServiceProbes) -> FollowResult:
        logs = probes.logs(self._context.home.run(record.run_id))
        metrics = _metrics_of_stored_output(record, logs)
        verdict = Verdict("lost")
        unreachable = UnreachableNodes(self._context, record)
        single_rank = sum(map(len, record.ranks.values())) == 1
        network = RunNetwork(self._context.emit, recipe_of(record).resources.network, self._inventory)
        spot_notices = SpotNotices(self._context, record)
        try:
            for item in follow(
                self._agents,
                self._ranks(record),
                self._run_dirs(record),
                logs,
                self._context.clock,
                unreachable,
                spot=is_spot(self._context.records.last_known(record.cluster)),
            ):
                if isinstance(item, Chunk):
                    self._emit_lines(probes.shown(item), metrics, single_rank=single_rank)
                elif isinstance(item, Verdict):
                    verdict = item
                elif isinstance(item, NodeTransport):
                    network.add(item)
                else:
                    spot_notices.add(item)
        except ConnectError as err:
            # As long as a node is running, the run may continue.
            if not unreachable.all_terminated():
                raise
            verdict = Verdict("lost", reason=err.message)
        for problem in metrics.problems:
            self._context.emit(Note(problem))
        ran_s = verdict.ran_s
        verdict = unreachable.with_lost_spot_nodes(verdict, [agent.host.node for agent in self._agents])
        verdict = probes.with_service_failure(verdict)
        tail = () if verdict.rank is None else tuple(logs.tail(verdict.rank))
        return FollowResult(verdict, metrics.measured(), tail, network.name, ran_s)

    def stop(self, record: RunRecord) -> None:
        """Stop the run on every node, with a grace period in which the ranks can write a checkpoint.

        The cluster keeps running.

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
        """Download the outputs from the connected nodes. Report all other instances of the cluster as terminated."""
        job = Job(record.run_id, recipe_of(record), self._inventory, "")
        collected = collect(job, self._agents, self._context.home.run(record.run_id).outputs, self._context.emit)
        here = {agent.host.node.index for agent in self._agents}
        cluster = self._context.records.last_known(record.cluster)
        terminated = terminated_node_lines(cluster, dict(enumerate(instance_ids)), here)
        return replace(collected, missing=() if terminated else collected.missing, gone=terminated)

    def _emit_lines(self, chunk: Chunk, metrics: Metrics, *, single_rank: bool) -> None:
        for written_at, raw in chunk.by_time():
            text = raw.decode(errors="replace")
            lines = text.splitlines()
            shown = [_shortened(line) for line in lines] if max(map(len, lines), default=0) > _LONGEST_SHOWN else lines
            self._context.emit(RankOutput(chunk.rank, tuple(shown), single_rank, written_at))
            for name, value, unit in metrics.read(text, chunk.rank):
                self._context.emit(MetricValue(name, value, unit))

    def _head(self) -> Host | None:
        """Return the head node, on which services run, or None if it is not connected."""
        return next((agent.host for agent in self._agents if agent.host.node.index == 0), None)

    def _ranks(self, record: RunRecord) -> dict[int, Sequence[int]]:
        return {int(node): ranks for node, ranks in record.ranks.items()}

    def _run_dirs(self, record: RunRecord) -> dict[int, str]:
        return {agent.host.node.index: f"{agent.home}/.cloudgpu/runs/{record.run_id}" for agent in self._agents}


def _metrics_of_stored_output(record: RunRecord, logs: LogStore) -> Metrics:
    """Return the run's metrics with the values in the output that is already on this machine."""
    metrics = Metrics(recipe_of(record).metrics)
    for rank in sorted(rank for ranks in record.ranks.values() for rank in ranks):
        for lines in logs.blocks(rank):
            metrics.read("\n".join(lines), rank)
    return metrics


def _shortened(line: str) -> str:
    if len(line) <= _LONGEST_SHOWN:
        return line
    return f"{line[:_LONGEST_SHOWN]} ... ({len(line)} characters; the log contains the whole line)"


def check_new_nodes(context: Context, provisioned: ProvisionedCluster, stages: Stages) -> None:
    """Connect to the nodes, wait until their bootstrap is done, and check their hardware.

    Nodes that an earlier command has found healthy and the user's own hosts are not checked. The cluster is kept if a
    node fails.

    Raises:
        ConnectError: A node is unreachable.
        RemoteCommandError: The bootstrap failed or took too long on a node, or the node lacks hardware.
    """
    unchecked = provisioned.made or provisioned.record.lifecycle.nodes_unchecked
    if not unchecked or provisioned.inventory.head.own:
        return
    try:
        with RunNodes(context, stages) as nodes:
            nodes.connect(provisioned.inventory)
            nodes.gate()
    except CloudGpuError as err:
        record = provisioned.record
        kept = f"the cluster is kept until {record.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
        err.hint = f"{err.hint or 'look at the nodes'}; {kept}: {command('cloudgpu', 'down', record.name)}"
        raise
