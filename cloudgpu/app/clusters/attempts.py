"""One attempt at one candidate: ledger row and record before the first call, the truth about it after the last."""

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
from cloudgpu.plan.failover import rule_of
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.run.progress import Note
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.state.records import ClusterRecord

_FLEET = "aws:ec2/fleet:Fleet"


class Attempts:
    """Carries the program out for one candidate after another."""

    def __init__(self, context: CloudContext, requester: Requester) -> None:
        self._context = context
        self._requester = requester
        self._billing = ClusterBilling(context)
        self._storage = ClusterStorage(context)
        self._cooldowns = Cooldowns(context.home, context.clock)

    def at(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, Applied]:
        """Make the cluster of this candidate.

        Raises:
            LaunchError: It cannot be had; what was launched all the same has ended, confirmed.
            CloudGpuError: Something else failed; what was made stands.
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
            self._refused(record, candidate, row, err)
            launch.settle(err)
            raise
        except CloudGpuError as err:
            launch.settle(err)
            raise
        ids = instances(applied)
        opened_at = self._opened_at(record, row)
        context.ledger.launched(row.entry_id, ids, launch.at or opened_at)
        self._cooldowns.forget(context.cloud, candidate)
        return context.records.save_cluster(replace(record, instance_ids=ids), context.clock.now()), applied

    def _refused(self, record: ClusterRecord, candidate: Candidate, row: Spending, err: LaunchError) -> None:
        """A definite no: nothing runs, so the row is closed; it costs nothing unless a part of the gang had begun."""
        if err.launched:
            self._context.ledger.launched(row.entry_id, err.launched, self._opened_at(record, row))
        self._context.ledger.close(row.entry_id, self._context.clock.now())
        if isinstance(err, CapacityError):
            self._cooldowns.note(self._context.cloud, candidate)

    def _opened_at(self, record: ClusterRecord, row: Spending) -> datetime:
        """When the row was opened: right before the call whose answer nobody wrote down.

        Another home may have closed it meanwhile, by `down` or `sweep` of a cluster that it saw half made. It is opened
        again, for what was bought has to be on the bill.
        """
        rows = self._billing.rows(record)
        opened = (one.spending for one in rows if one.spending.entry_id == row.entry_id and one.state == "open")
        present = next(opened, None)
        if present is None:
            self._context.ledger.open(row)
        return (present or row).opened_at


class _Launch:
    """Listens for the moment in which the gang was bought, and keeps its refusal until it is known what follows."""

    def __init__(self, context: CloudContext) -> None:
        self.at: datetime | None = None
        self._context = context
        self._refused: Event | None = None

    def on_event(self, what: ProgressEvent) -> None:
        """Pass it on, apart from the launch's own refusal."""
        if isinstance(what, Event) and what.type == _FLEET:
            if what.kind == "failed":
                self._refused = what
                return
            if what.kind == "done" and what.operation == "create":
                self.at = self._context.clock.now()
        self._context.emit(what)

    def settle(self, err: CloudGpuError) -> None:
        """A refusal that leads to the next candidate is told in one line with it; any other is told here."""
        moves_on = isinstance(err, LaunchError) and rule_of(err).skips != "stop"
        if self._refused is not None and not moves_on:
            self._context.emit(self._refused)


def instances(applied: Applied) -> tuple[str, ...]:
    """The gang's instances, in the order of its nodes."""
    return tuple(str(instance_id) for instance_id in applied.outputs["instanceIds"])
