"""`train`: check that a plan can be executed, and execute it. If a step fails, resources are deleted or reported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudgpu.app.planning.planner import name_of_cluster
from cloudgpu.app.runs.concurrency import BusyNodes, Sharing
from cloudgpu.app.runs.datasets import check_checkpoint, dataset_lister, put_rehearsal_objects
from cloudgpu.app.runs.finish import RunFinisher
from cloudgpu.app.runs.nodes import RunNodes
from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.app.runs.services import follow_stage, stops_on_interrupt
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.credential_wait import CredentialWait
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.errors import CloudGpuError, RecipeError
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.launchers import launch
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.dataset_copies import Files
from cloudgpu.run.job import Job
from cloudgpu.run.progress import LogFolder, Note, Stages
from cloudgpu.run.registry_logins import RegistryLogin, registry_login
from cloudgpu.run.start import launch_inputs, new_gang_token, secret_values
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.state.identifiers import new_run_id
from cloudgpu.state.run_records import RunRecord


def check_feasible(plan: Plan, base: Path) -> None:
    """Check that the work directory can be uploaded, and build the launch commands without running them.

    Raises:
        RecipeError: The work directory cannot be uploaded, or the launcher rejected the recipe.
        UsageError: The recipe requests one rank per GPU, but a candidate has no GPU.
    """
    recipe = plan.recipe
    if recipe.workdir is not None:
        try:
            files_to_send((base / recipe.workdir).resolve())
        except CloudGpuError as err:
            raise RecipeError(
                f"workdir: {err.message}", hint="set `workdir` to the path of a directory, relative to the recipe"
            ) from err
    for gpus, candidate in {candidate.gpus_per_node: candidate for candidate in plan.candidates}.items():
        job = Job("on-paper", recipe, _placeholder_inventory(plan, candidate, gpus), "")
        data = {dataset.name: str(dataset.to) for dataset in recipe.data}
        launch(recipe, job.inventory, launch_inputs(job, "/home/user", "python3", data))


def _placeholder_inventory(plan: Plan, candidate: Candidate, gpus: int) -> Inventory:
    nodes = tuple(
        Node(
            index=index,
            instance_id="",
            address="",
            port=0,
            user="",
            host_keys=(),
            private_address="",
            instance_type=candidate.instance_type,
            zone=candidate.zone,
            gpu=candidate.gpu,
            gpus=gpus,
            simulated=plan.simulated,
        )
        for index in range(min(plan.nodes, 2))
    )
    return Inventory("", nodes)


@dataclass(frozen=True)
class TrainRequest:
    """The options of `train`.

    Attributes:
        base: Directory to which the recipe's paths are relative.
        cluster: Cluster to use or create. If empty, use a running cluster named after the recipe or create a new one.
        keep: Whether to keep the cluster regardless of the outcome.
        keep_on_failure: Whether to keep the cluster if the run fails.
        detach: Whether to return as soon as the ranks are started.
        retry_s: Seconds for which to retry all candidates if there is no capacity; 0 tries each candidate once.
        environ: Environment from which the recipe's secrets are read.
        delete_on_interrupt: Function that asks, after Ctrl-C, whether to stop the run and delete the cluster that the
            run created. Its argument describes what is still running.
        delete_unstarted: The same, for the time before any rank has started; by default, the same function.
        sharing: What to do if another run is in progress on the nodes.
        options: Options of `train` that start the same run again, for the record.
        run_id: ID that the caller has already recorded for the run; if empty, a new ID is generated.
    """

    plan: Plan
    recipe_path: Path
    base: Path
    cluster: str = ""
    keep: bool = False
    keep_on_failure: bool = False
    detach: bool = False
    retry_s: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    delete_on_interrupt: Callable[[str], bool] = lambda _what: False
    delete_unstarted: Callable[[str], bool] | None = None
    sharing: Sharing = "refuse"
    options: tuple[str, ...] = ()
    run_id: str = ""


class TrainingRun:
    """Executes runs on one backend and records them in one state home."""

    def __init__(self, context: Context, requester: Requester) -> None:
        self._context = context
        self._requester = requester

    def train(self, request: TrainRequest) -> RunOutcome:
        """Execute a run and return its outcome. A failed run does not raise an error.

        Raises:
            CloudGpuError: The run was aborted. Its resources have been deleted, or the hint lists the remaining
                resources and the command that attaches to the run if it may still be running.
        """
        secrets = secret_values(request.plan.recipe.environment.secrets, request.environ)
        self._login(request)  # fail before anything is launched
        stages = Stages(self._context.clock, self._context.emit)
        record = self._new_run(request)
        self._context.ledger.run_started(
            record.run_id, record.cluster, record.recipe, record.owner, record.team, record.started_at
        )
        finishing = RunFinisher(self._context, stages)
        with RunNodes(self._context, stages, log_folder=self._context.home.run(record.run_id).root) as nodes:
            try:
                # Record the run before anything is launched.
                self._context.records.save_run(record)
                self._context.emit(LogFolder(self._context.home.run(record.run_id).root))
                return self._carry_out(request, record, secrets, nodes, finishing, stages)
            except KeyboardInterrupt:
                end_now = request.delete_on_interrupt
                delete_unstarted = request.delete_unstarted or end_now
                if stops_on_interrupt(request.plan.recipe):
                    end_now = delete_unstarted = _end_now
                return finishing.interrupted(record.run_id, nodes, end_now, delete_unstarted)
            except CloudGpuError as err:
                finishing.finish_aborted(record, err)
                raise

    def check(self, request: TrainRequest) -> None:
        """Check a run's secrets, registry login, data and launch commands before it is started.

        Raises:
            CloudGpuError: A check failed, so the run would fail as well.
        """
        secret_values(request.plan.recipe.environment.secrets, request.environ)
        self._login(request)
        self._check(request, dataset_lister(self._context.backend, request.base))

    def _carry_out(
        self,
        request: TrainRequest,
        record: RunRecord,
        secrets: Mapping[str, str],
        nodes: RunNodes,
        finishing: RunFinisher,
        stages: Stages,
    ) -> RunOutcome:
        files = dataset_lister(self._context.backend, request.base)
        with stages.stage("check data"):
            self._check(request, files)
        with stages.stage("provision"):
            provisioned = self._cluster(request, record)
        record = self._context.records.save_run(replace(record, tried=provisioned.tried))
        job = Job(record.run_id, request.plan.recipe, provisioned.inventory, new_gang_token())
        nodes.connect(provisioned.inventory)
        busy = BusyNodes(self._context, request.sharing, record.cluster, record.run_id)
        if not self._is_new(record):
            # Checked here as well as at the start, because staging replaces files that the other run uses.
            nodes.require_idle(busy)
        nodes.gate()
        wait = CredentialWait(self._context.clock, self._context.emit, provisioned.record.lifecycle.expires_at)
        login = wait.retry(lambda: self._login(request))
        staged = nodes.prepare(job, request.base, lambda data: wait.retry(lambda: files(data)), login, secrets)
        needs = unsupported_rehearsal_image(request.plan)
        if needs:
            not_run = replace(record, state="not-run", reason=f"not run: needs {needs}")
            return finishing.finish(self._context.records.save_run(not_run), nodes)
        # Record the ranks before they are started, so that `attach` finds the run if this process is killed.
        image = next((provided.image for provided in staged.images.values()), "")
        record = self._context.records.save_run(replace(record, ranks=nodes.ranks(job, staged), image=image))
        try:
            nodes.start(job, staged, secrets, busy)
        except CloudGpuError:
            self._context.records.save_run(replace(record, ranks={}))
            raise
        # `attach` continues with these stages if this process is killed.
        record = self._context.records.save_run(replace(record, state="running", stages=tuple(stages.done)))
        if request.detach:
            return finishing.detached_outcome(record)
        with stages.stage(follow_stage(record)):
            followed = nodes.follow(record)
        return finishing.finish(finishing.record_final_status(record, followed), nodes, followed)

    def _is_new(self, record: RunRecord) -> bool:
        """Return True if the cluster was created for this run, so that no other run can be in progress on it."""
        cluster = self._context.records.cluster(record.cluster)
        return cluster is not None and cluster.identity.run_id == record.run_id

    def _login(self, request: TrainRequest) -> RegistryLogin | None:
        if unsupported_rehearsal_image(request.plan):
            return None
        return registry_login(request.plan.recipe.environment, request.environ, self._context.backend.registry_login)

    def _check(self, request: TrainRequest, files: Files) -> None:
        """Check the data, checkpoint and launch commands before anything is launched."""
        put_rehearsal_objects(request.plan.recipe, request.base, self._context.backend)
        for dataset in request.plan.recipe.data:
            files(dataset)
        check_checkpoint(request.plan.recipe, self._context.backend, files)
        check_feasible(request.plan, request.base)

    def _new_run(self, request: TrainRequest) -> RunRecord:
        recipe, records, clock = request.plan.recipe, self._context.records, self._context.clock
        run_id = request.run_id or new_run_id(recipe.name)
        return RunRecord(
            run_id=run_id,
            cluster=name_of_cluster(records, clock, request.plan, request.cluster, self._context.emit) or run_id,
            recipe=recipe.name,
            recipe_path=str(request.recipe_path),
            owner=self._requester.owner,
            team=self._requester.team,
            target=request.plan.target,
            started_at=clock.now(),
            keep=request.keep,
            keep_on_failure=request.keep_on_failure,
            resolved=recipe.model_dump(mode="json", by_alias=True),
            recipe_digest=request.plan.recipe_digest,
            options=request.options,
        )

    def _cluster(self, request: TrainRequest, record: RunRecord) -> ProvisionedCluster:
        existing = self._context.records.cluster(record.cluster)
        if existing is not None and existing.state == "up":
            self._context.emit(
                Note(
                    f"using cluster {record.cluster}, which is running until {existing.lifecycle.expires_at:%H:%M} UTC"
                )
            )
            return self._context.clusters.reuse(record.cluster, request.plan)
        return self._context.clusters.create(
            request.plan,
            record.cluster,
            self._requester,
            run_id=record.run_id,
            keep_on_failure=request.keep_on_failure,
            retry_s=request.retry_s,
        )


def _end_now(_what: str) -> bool:
    """Confirm without a prompt, for a service that stops when its command is interrupted."""
    return True


def unsupported_rehearsal_image(plan: Plan) -> str:
    """Return the container image that a rehearsal cannot run, or an empty string."""
    container = plan.recipe.environment.container
    return container.image if plan.simulated and container is not None else ""
