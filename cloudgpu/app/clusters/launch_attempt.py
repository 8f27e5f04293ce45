"""Launch one candidate: write the ledger row and the record before the first call, and the outcome after the last."""

from dataclasses import replace
from datetime import datetime

from cloudgpu.app.clusters.delete import stack_of
from cloudgpu.app.clusters.storage import ClusterStorage
from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.costs import spending_of
from cloudgpu.backends.events import ProgressEvent
from cloudgpu.backends.launch_request import Requester, chosen
from cloudgpu.engine.base import Applied, Event
from cloudgpu.errors import CapacityError, CloudGpuError, LaunchError
from cloudgpu.ledger.entry import Spending
from cloudgpu.plan.launch_error_codes import rule_of
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.state.cooldowns import Cooldowns

_FLEET = "aws:ec2/fleet:Fleet"


class Attempts:
    """Launches candidates with the infrastructure program."""

    def __init__(self, context: CloudContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._billing = ClusterBilling(context)
        self._storage = ClusterStorage(context)
        self._cooldowns = Cooldowns(context.home, context.clock)

    def at(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, Applied]:
        """Create the cluster on this candidate.

        Raises:
            LaunchError: AWS did not launch it; instances launched in part are confirmed terminated.
            CloudGpuError: Another step failed; what was created still exists.
        """
        context = self._context
        context.emit(Note(f"trying {candidate.label}: {plan.nodes} x ${candidate.node_hourly_usd}/h"))
        record, ready = self._storage.ready(plan.recipe, record, candidate, self._requester.existing)
        record = chosen(record, plan, candidate, self._requester, context.cloud.caller_cidr(), ready)
        row = spending_of(record, context.clock.now())
        record = context.records.save_cluster(record, context.clock.now())
        context.ledger.open(row)
        launch = _Launch(context)
        try:
            applied = context.cloud.engine(record).up(stack_of(context.home, record), launch.on_event)
        except LaunchError as err:
            self._close_refused(record, candidate, row, err)
            launch.report_failure(err)
            raise
        except CloudGpuError as err:
            launch.report_failure(err)
            raise
        ids = instances(applied)
        opened_at = self._opened_at(record, row)
        context.ledger.launched(row.entry_id, ids, launch.at or opened_at)
        self._cooldowns.forget(context.cloud, candidate)
        return context.records.save_cluster(replace(record, instance_ids=ids), context.clock.now()), applied

    def _close_refused(self, record: ClusterRecord, candidate: Candidate, row: Spending, err: LaunchError) -> None:
        """Close the row after a refused launch. It costs nothing unless some of the instances were launched."""
        if err.launched:
            self._context.ledger.launched(row.entry_id, err.launched, self._opened_at(record, row))
        self._context.ledger.close(row.entry_id, self._context.clock.now())
        if isinstance(err, CapacityError):
            self._cooldowns.note(self._context.cloud, candidate)

    def _opened_at(self, record: ClusterRecord, row: Spending) -> datetime:
        """Return when the row was opened, and open it again if it was closed meanwhile.

        `down` or `sweep` from another home may have closed it while the cluster was being created. The launched
        instances must be on the bill.
        """
        entries = self._billing.rows(record)
        opened = (
            entry.spending for entry in entries if entry.spending.entry_id == row.entry_id and entry.state == "open"
        )
        open_row = next(opened, None)
        if open_row is None:
            self._context.ledger.open(row)
        return (open_row or row).opened_at


class _Launch:
    """Records when the instances were launched, and holds back the launch failure until `report_failure`."""

    def __init__(self, context: CloudContext) -> None:
        self.at: datetime | None = None
        self._context = context
        self._failure: Event | None = None

    def on_event(self, event: ProgressEvent) -> None:
        """Forward the event, except a failure of the launch itself."""
        if isinstance(event, Event) and event.type == _FLEET:
            if event.kind == "failed":
                self._failure = event
                return
            if event.kind == "done" and event.operation == "create":
                self.at = self._context.clock.now()
        self._context.emit(event)

    def report_failure(self, err: CloudGpuError) -> None:
        """Emit the held-back failure unless the next candidate is tried, which reports it in one line."""
        tries_next = isinstance(err, LaunchError) and rule_of(err).skips != "stop"
        if self._failure is not None and not tries_next:
            self._context.emit(self._failure)


def instances(applied: Applied) -> tuple[str, ...]:
    """Return the launched instance ids in node order."""
    return tuple(str(instance_id) for instance_id in applied.outputs["instanceIds"])
