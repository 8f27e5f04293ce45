"""The end of a run: outputs first, then the cluster it made, then the bill. Used by `train` and `attach`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

from cloudgpu.app.happenings import Say
from cloudgpu.app.outcome import RunOutcome
from cloudgpu.app.ports import Cloud, Ledger
from cloudgpu.app.records import ClusterRecord, Records, RunRecord
from cloudgpu.app.running import Running, dead
from cloudgpu.app.stages import Stages
from cloudgpu.app.teardown import Teardown
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError
from cloudgpu.launch.inventory import Node
from cloudgpu.paths import Home
from cloudgpu.run.job import Job
from cloudgpu.run.metrics import Measured
from cloudgpu.run.progress import Note


class Finishing:
    """Ends runs. One object for one run."""

    def __init__(  # noqa: PLR0917
        self,
        cloud: Cloud,
        ledger: Ledger,
        records: Records,
        home: Home,
        clock: Clock,
        owner: str,
        stages: Stages,
        say: Say,
        *,
        keep: bool = False,
        keep_on_failure: bool = False,
    ) -> None:
        self._ledger = ledger
        self._cloud = cloud
        self._records = records
        self._home = home
        self._clock = clock
        self._stages = stages
        self._say = say
        self._keep = keep
        self._keep_on_failure = keep_on_failure
        self._teardown = Teardown(cloud, ledger, records, home, clock, owner, say)

    def finish(
        self,
        record: RunRecord,
        job: Job,
        running: Running,
        measured: Sequence[Measured],
        tail: Sequence[str] = (),
    ) -> RunOutcome:
        """Collect, end the cluster unless it is to be kept, close the books.

        Raises:
            TeardownError: The cluster could not be confirmed gone.
        """
        gone = self._gone(record, job)
        running.forget(gone)
        with self._stages.stage("collect"):
            collected = running.collect(job)
        notes = [f"node {node.index} ({node.instance_id}) is gone, and what it held" for node in gone]
        notes += [f"no node had {pattern}" for pattern in collected.missing]
        record = replace(record, outputs=collected.files)
        kept = self._why_kept(record, collected.failures)
        return self._closed(record, kept, tuple(measured), tuple(tail), tuple(notes))

    def left_running(self, record: RunRecord) -> RunOutcome:
        """The outcome of `--detach`: everything goes on."""
        record = self._records.save_run(replace(record, stages=tuple(self._stages.done)))
        return self._outcome(record, kept="detached")

    def interrupted(self, run_id: str, end_now: Callable[[str], bool]) -> RunOutcome:
        """After Ctrl-C: say what goes on and how to end it, or end it as asked."""
        record = self._records.run(run_id)
        if record is None:
            raise KeyboardInterrupt
        cluster = self._records.cluster(record.cluster)
        if cluster is None:
            return self._outcome(self._ended(replace(record, state="interrupted", reason="interrupted")))
        if not end_now(f"run {run_id} on cluster {cluster.name} ({cluster.nodes} x {cluster.instance_type})"):
            return self._outcome(record, kept="interrupted; the cluster was left as it is")
        record = replace(record, state="cancelled", reason="interrupted")
        kept = "" if cluster.run_id == run_id else "the cluster is not this run's to end"
        return self._closed(record, kept, (), (), ())

    def abandoned(self, run_id: str, err: CloudGpuError) -> None:
        """An error before the verdict: end the cluster this run made, unless it may hold what cannot be fetched now."""
        record = self._records.run(run_id)
        if record is None:
            return
        cluster = self._records.cluster(record.cluster)
        self._ended(replace(record, state="lost" if record.state == "running" else "failed", reason=err.message))
        if cluster is None or cluster.run_id != run_id:
            return
        if record.state == "running" or self._keep or self._keep_on_failure:
            err.hint = f"{err.hint}; {_still_up(cluster)}".lstrip("; ")
            return
        with self._stages.stage("down"):
            self._teardown.down(cluster.name, cluster.region)

    def _gone(self, record: RunRecord, job: Job) -> list[Node]:
        """Nodes of a run that went wrong whose outputs nobody will ever fetch: the cluster need not wait for them."""
        cluster = self._records.cluster(record.cluster)
        if cluster is None or record.state in ("succeeded", "not-run"):
            return []
        try:
            states = self._cloud.nodes_alive(cluster.region, cluster.instance_ids)
        except CloudError:
            return []  # what can be fetched is fetched all the same; `down` will say what the cloud's trouble is
        return dead(job.inventory, states)

    def _why_kept(self, record: RunRecord, failures: Sequence[str]) -> str:
        """Why the cluster stays, empty when it is to be ended. What could not be fetched weighs more than a wish."""
        cluster = self._records.cluster(record.cluster)
        if cluster is None:
            return ""
        bad = record.state not in ("succeeded", "not-run")
        reasons = (
            (bool(failures), f"outputs could not be fetched ({failures[0] if failures else ''})"),
            (cluster.run_id != record.run_id, "the run did not make it"),
            (self._keep, "--keep"),
            (self._keep_on_failure and bad, "--keep-on-failure"),
        )
        return next((text for holds, text in reasons if holds), "")

    def _closed(
        self,
        record: RunRecord,
        kept: str,
        measured: tuple[Measured, ...],
        tail: tuple[str, ...],
        notes: tuple[str, ...],
    ) -> RunOutcome:
        cluster = self._records.cluster(record.cluster)
        usd = Decimal(0)
        if cluster is not None and not kept:
            with self._stages.stage("down"):
                usd = self._teardown.down(cluster.name, cluster.region).usd
        record = self._ended(record)
        if kept and cluster is not None:
            usd = self._cost(record, cluster)
        for note in notes:
            self._say(Note(note))
        outcome = self._outcome(record, cluster, kept)
        return replace(outcome, measured=measured, usd=usd, tail=tail, notes=notes)

    def _ended(self, record: RunRecord) -> RunRecord:
        now = self._clock.now()
        self._ledger.run_ended(record.run_id, record.state, now)
        return self._records.save_run(replace(record, stages=tuple(self._stages.done), ended_at=now))

    def _cost(self, record: RunRecord, cluster: ClusterRecord) -> Decimal:
        """Node time between the run's start and end, at the price of launch, USD."""
        if record.ended_at is None:
            return Decimal(0)
        hours = Decimal(str((record.ended_at - record.started_at).total_seconds())) / 3600
        return (Decimal(cluster.node_hourly_usd) * cluster.nodes * hours).quantize(Decimal("0.0001"))

    def _outcome(self, record: RunRecord, cluster: ClusterRecord | None = None, kept: str = "") -> RunOutcome:
        cluster = cluster or self._records.cluster(record.cluster)
        paths = self._home.run(record.run_id)
        outcome = RunOutcome(
            record=record,
            simulated=record.target == "rehearsal",
            kept=kept,
            logs=str(paths.logs),
            outputs=str(paths.outputs),
        )
        if cluster is None:
            return outcome
        return replace(
            outcome,
            nodes=cluster.nodes,
            instance_type=cluster.instance_type,
            zone=cluster.zone,
            left=(_still_up(cluster),) if kept else (),
        )


def _still_up(cluster: ClusterRecord) -> str:
    return (
        f"cluster {cluster.name} ({cluster.nodes} x {cluster.instance_type}) is up until "
        f"{cluster.expires_at:%Y-%m-%d %H:%M} UTC; `cloudgpu down {cluster.name}` ends it now"
    )
