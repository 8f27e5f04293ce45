"""`sweep`: find every resource with cloudgpu tags in the account and delete the leftovers.

The steps are query (`query.py`), classify (`classify.py`) and, after the plan has been shown, apply (`apply.py`). Only
this module receives the command's context; the steps receive what they need from it.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.ledger_closing import LedgerCloser
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.clusters.unanswered_launches import UnansweredLaunches
from cloudgpu.backends.aws.clusters.verified_deletion import TagSearch
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.aws.sweep.apply import SweepExecutor, UnrecordedDeletion
from cloudgpu.backends.aws.sweep.classify import classify
from cloudgpu.backends.aws.sweep.query import SweepQuery
from cloudgpu.backends.base import ImageStore
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.billing.lenient_ledger import check_ledger
from cloudgpu.backends.lifecycle.cluster_lease import cluster_lease
from cloudgpu.backends.sweep.plan import SweepPlan, SweepRequest, SweepResult
from cloudgpu.catalog import load as load_catalog
from cloudgpu.errors import StateError


class AccountSweep:
    """Searches one account for leftover resources and deletes them. Uses the records of one state home."""

    def __init__(self, context: CloudContext, images: ImageStore, default_region: str) -> None:
        self._context = context
        self._query = SweepQuery(
            context.cloud, images, context.ledger, context.records, partial(_is_busy, context), context.emit
        )
        unrecorded = UnrecordedDeletion(
            TagSearch(context),
            UnansweredLaunches(context),
            ClusterBilling(context),
            partial(LedgerCloser.started, context),
            context.clock,
        )
        self._executor = SweepExecutor(
            context.records,
            partial(_delete_recorded, context, default_region),
            unrecorded,
            ClusterStorage(context).end_orphan,
            context.emit,
        )

    def plan(self, regions: Sequence[str], request: SweepRequest) -> SweepPlan:
        """Search these regions, or by default every enabled region and IAM, and decide what may be deleted."""
        return classify(self._query.find(regions), request, load_catalog(), self._context.clock.now())

    def delete_clusters(self, plan: SweepPlan) -> SweepResult:
        """Delete the plan's clusters concurrently. A failure does not stop the other deletions."""
        return self._executor.apply_to_clusters(plan)

    def delete_storage(self, plan: SweepPlan, clusters: SweepResult) -> SweepResult:
        """Delete the plan's storage, except storage whose cluster could not be deleted according to `clusters`."""
        return self._executor.apply_to_storage(plan, clusters)

    def check_recorded(self, swept: SweepResult) -> None:
        """Raise an error if the deletions could not be recorded."""
        names = ", ".join(resource.label for resource in swept.ended)
        check_ledger(self._context, f"confirmed deleted: {names}" if names else "the account was swept")
        unsaved = "; ".join(self._executor.unsaved)
        if unsaved:
            message = f"confirmed deleted: {names}, but the records could not be updated: {unsaved}"
            raise StateError(message, hint="free some disk space, then run `cloudgpu down NAME` to update them")


def _is_busy(context: CloudContext, name: str) -> bool:
    return cluster_lease(context, name).holder() is not None


def _delete_recorded(context: CloudContext, default_region: str, name: str) -> Iterable[str]:
    return Teardown(context).delete(name, default_region).unsaved
