"""`train`: one run from plan to bill. Each step either completes, or what it made is ended or named."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloudgpu.app.datasets import lister, put_rehearsal_objects
from cloudgpu.app.finishing import Finishing
from cloudgpu.app.happenings import Say
from cloudgpu.app.identifiers import new_run_id
from cloudgpu.app.outcome import RunOutcome
from cloudgpu.app.ports import Cloud, Dial, Ledger
from cloudgpu.app.provisioning import Buyer, Provisioning, Standing
from cloudgpu.app.records import Records, RunRecord
from cloudgpu.app.running import Running, judged
from cloudgpu.app.stages import Stages
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan
from cloudgpu.run.job import Job
from cloudgpu.run.progress import Note
from cloudgpu.run.start import new_gang_token, secret_values


@dataclass(frozen=True)
class TrainRequest:
    """What `train` was asked for.

    Attributes:
        base: Directory that the recipe's relative paths start from.
        cluster: A cluster to use or to make; empty means one of this run's own, unless one named as the recipe is up.
        keep: Leave the cluster in any case.
        keep_on_failure: Leave it when the run failed.
        detach: Return as soon as the ranks run.
        environ: Where the recipe's secrets come from.
        end_on_interrupt: Asked after Ctrl-C with what is still running; True means end it now.
    """

    plan: Plan
    recipe_path: Path
    base: Path
    cluster: str = ""
    keep: bool = False
    keep_on_failure: bool = False
    detach: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)
    end_on_interrupt: Callable[[str], bool] = lambda _what: False


class Training:
    """Carries out one request. One object for one cloud and one home."""

    def __init__(  # noqa: PLR0917
        self,
        cloud: Cloud,
        ledger: Ledger,
        records: Records,
        home: Home,
        clock: Clock,
        buyer: Buyer,
        dial: Dial,
        say: Say,
    ) -> None:
        self._cloud = cloud
        self._ledger = ledger
        self._records = records
        self._home = home
        self._clock = clock
        self._buyer = buyer
        self._dial = dial
        self._say = say
        self._provisioning = Provisioning(cloud, ledger, records, home, clock, buyer, say)

    def train(self, request: TrainRequest) -> RunOutcome:
        """Run it.

        Raises:
            CloudGpuError: Anything before the ranks ran; what the call made is ended, or named in the error's hint.
                A run that started always returns an outcome, failed or not.
        """
        secrets = secret_values(request.plan.recipe.environment.secrets, request.environ)
        stages = Stages(self._clock, self._say)
        record = self._begun(request)
        finishing = self._finishing(request, stages)
        try:
            return self._carry_out(request, record, secrets, stages, finishing)
        except KeyboardInterrupt:
            return finishing.interrupted(record.run_id, request.end_on_interrupt)
        except CloudGpuError as err:
            finishing.abandoned(record.run_id, err)
            raise

    def _carry_out(
        self,
        request: TrainRequest,
        record: RunRecord,
        secrets: Mapping[str, str],
        stages: Stages,
        finishing: Finishing,
    ) -> RunOutcome:
        recipe = request.plan.recipe
        files = lister(self._cloud, request.base)
        with stages.stage("check data"):
            put_rehearsal_objects(recipe, request.base, self._cloud)
            for dataset in recipe.data:
                if dataset.source.startswith("s3://"):
                    files(dataset)
        with stages.stage("provision"):
            standing = self._cluster(request, record)
        record = self._records.save_run(replace(record, ends_cluster=standing.made))
        job = Job(record.run_id, recipe, standing.inventory, new_gang_token())
        with Running(self._home, self._records, self._clock, self._dial, stages, self._say) as running:
            running.connect(standing.inventory)
            running.gate()
            staged = running.stage(job, request.base, files)
            needs = missing_on_rehearsal(request.plan)
            if needs:
                record = self._records.save_run(replace(record, state="not-run", reason=f"not run: needs {needs}"))
                return finishing.finish(record, job, running, ())
            ranks = running.start(job, staged, secrets)
            record = self._records.save_run(replace(record, state="running", ranks=ranks))
            if request.detach:
                return finishing.left_running(record)
            with stages.stage("train"):
                followed = running.follow(record, recipe)
            record = self._records.save_run(judged(record, followed))
            return finishing.finish(record, job, running, followed.measured, followed.tail)

    def _begun(self, request: TrainRequest) -> RunRecord:
        """The run is in the records and in the ledger before anything is bought for it."""
        record = self._records.save_run(self._new_run(request))
        self._ledger.run_started(
            record.run_id, record.cluster, record.recipe, record.owner, record.team, record.started_at
        )
        return record

    def _new_run(self, request: TrainRequest) -> RunRecord:
        recipe = request.plan.recipe
        run_id = new_run_id(recipe.name)
        return RunRecord(
            run_id=run_id,
            cluster=self._cluster_name(request, run_id),
            recipe=recipe.name,
            recipe_path=str(request.recipe_path),
            owner=self._buyer.owner,
            team=self._buyer.team,
            target=request.plan.target,
            started_at=self._clock.now(),
            resolved=recipe.model_dump(mode="json", by_alias=True),
            recipe_digest=request.plan.recipe_digest,
        )

    def _cluster_name(self, request: TrainRequest, run_id: str) -> str:
        if request.cluster:
            return request.cluster
        named_alike = self._records.cluster(request.plan.recipe.name)
        usable = named_alike is not None and named_alike.state == "up" and named_alike.target == request.plan.target
        return request.plan.recipe.name if usable else run_id

    def _cluster(self, request: TrainRequest, record: RunRecord) -> Standing:
        existing = self._records.cluster(record.cluster)
        if existing is not None and existing.state == "up":
            self._say(Note(f"using cluster {record.cluster}, which is up until {existing.expires_at:%H:%M} UTC"))
            return self._provisioning.standing(record.cluster, request.plan)
        return self._provisioning.up(
            request.plan, record.cluster, run_id=record.run_id, keep_on_failure=request.keep_on_failure
        )

    def _finishing(self, request: TrainRequest, stages: Stages) -> Finishing:
        return Finishing(
            self._cloud,
            self._ledger,
            self._records,
            self._home,
            self._clock,
            self._buyer.owner,
            stages,
            self._say,
            keep=request.keep,
            keep_on_failure=request.keep_on_failure,
        )


def missing_on_rehearsal(plan: Plan) -> str:
    """What a rehearsal cannot have, so that its command is not run; empty when it can run."""
    container = plan.recipe.environment.container
    return container.image if plan.simulated and container is not None else ""
