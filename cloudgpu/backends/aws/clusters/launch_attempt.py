"""Launch one candidate. Write the record and the ledger row before the launch call, and the outcome after the call."""

from dataclasses import replace
from datetime import datetime

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import close_failed_launch, record_launches, report_clock_difference
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.backends.lifecycle.launch_request import Requester, program_choices, record_with_candidate
from cloudgpu.engine.base import AppliedStack, Event
from cloudgpu.errors import CapacityError, CloudGpuError, LaunchError
from cloudgpu.ledger.entry import Spending
from cloudgpu.plan.launch_error_codes import UNUSABLE_KEY, rule_for_error
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.plan.storage import node_subnets
from cloudgpu.run.progress import Note, ProgressEvent
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.text import command

_FLEET = "aws:ec2/fleet:Fleet"


class CandidateLauncher:
    """Launches candidates with the infrastructure program."""

    def __init__(self, context: CloudContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._billing = ClusterBilling(context)
        self._storage = ClusterStorage(context)
        self._cooldowns = Cooldowns(context.home, context.clock)

    def at(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, AppliedStack]:
        """Create the cluster on this candidate, and return the updated record and the applied stack."""
        context = self._context
        context.emit(Note(f"trying {candidate.label}: {plan.nodes} x ${candidate.node_hourly_usd}/h", detail=True))
        existing = program_choices(plan.recipe, self._requester)
        record, ready = self._storage.ready(
            plan.recipe, record, candidate, existing, node_subnets(plan.candidates, candidate.region)
        )
        record = record_with_candidate(record, plan, candidate, self._requester, context.cloud.caller_cidr(), ready)
        row = spending_of(record, context.clock.now())
        record = context.records.save_cluster(record, context.clock.now())
        context.ledger.open(row)
        launch = _Launch(context)
        try:
            applied = context.cloud.engine(record).up(stack_of(context.home, record), launch.on_event)
        except LaunchError as err:
            _name_key(err, record)
            self._close_failed(record, candidate, row, err)
            launch.report_failure(err)
            raise
        except CloudGpuError as err:
            launch.report_failure(err)
            raise
        ids = launched_instance_ids(applied)
        record_launches(context, row, ids, self._opened_at(record, row))
        report_clock_difference(context)
        self._cooldowns.forget(context.cloud, candidate)
        launched = replace(record, placement=replace(record.placement, instance_ids=ids))
        return context.records.save_cluster(launched, context.clock.now()), applied

    def _close_failed(self, record: ClusterRecord, candidate: Candidate, row: Spending, err: LaunchError) -> None:
        """Close the row after a failed launch. The row costs nothing unless some of the instances ran."""
        if err.launched:
            record_launches(self._context, row, err.launched, self._opened_at(record, row))
        entries = self._billing.rows(record)
        close_failed_launch(self._context, [entry for entry in entries if entry.spending.entry_id == row.entry_id])
        if isinstance(err, CapacityError):
            self._cooldowns.note(self._context.cloud, candidate)

    def _opened_at(self, record: ClusterRecord, row: Spending) -> datetime:
        """Reopen the row if it has been closed, and return the time at which it was opened.

        `down` or `sweep` from another state home may have closed the row while the cluster was being created, but the
        launched instances must be billed.
        """
        entries = self._billing.rows(record)
        opened = (
            entry.spending for entry in entries if entry.spending.entry_id == row.entry_id and entry.state == "open"
        )
        open_row = next(opened, None)
        if open_row is None:
            self._context.ledger.open(row)
        return (open_row or row).opened_at


def _name_key(err: LaunchError, record: ClusterRecord) -> None:
    """Add the KMS key to the error of a launch that failed because of it: AWS says only `Client error on launch`."""
    if rule_for_error(err) is not UNUSABLE_KEY:
        return
    shown = command("aws", "ec2", "get-ebs-default-kms-key-id", "--region", record.placement.region)
    key = record.placement.config.get("kmsKeyId") or f"the region's default key for EBS, which `{shown}` prints"
    err.message += f"; AWS could not use the KMS key of the disks: {key}"


class _Launch:
    """Defers the launch-failure event until `report_failure`."""

    def __init__(self, context: CloudContext) -> None:
        self._context = context
        self._failure: Event | None = None

    def on_event(self, event: ProgressEvent) -> None:
        """Forward the event, except a failure of the launch itself."""
        if isinstance(event, Event) and event.type == _FLEET and event.kind == "failed":
            self._failure = event
        else:
            self._context.emit(event)

    def report_failure(self, err: CloudGpuError) -> None:
        """Emit the deferred failure, unless the caller reports the failure in one line and tries the next candidate."""
        tries_next = isinstance(err, LaunchError) and rule_for_error(err).skips != "stop"
        if self._failure is not None and not tries_next:
            self._context.emit(self._failure)


def launched_instance_ids(applied: AppliedStack) -> tuple[str, ...]:
    """Return the IDs of the launched instances in node order."""
    return tuple(str(instance_id) for instance_id in applied.outputs["instanceIds"])
