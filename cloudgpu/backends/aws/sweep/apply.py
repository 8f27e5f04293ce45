"""Apply the plan of a sweep: delete its clusters, then its storage."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from cloudgpu.aws.ec2.tagged_types import GLOBAL
from cloudgpu.backends.aws.clusters.ledger_closing import LedgerCloser
from cloudgpu.backends.aws.clusters.region_failures import RegionFailures
from cloudgpu.backends.aws.clusters.row_restoration import record_unanswered_launches
from cloudgpu.backends.aws.clusters.unanswered_launches import UnansweredLaunches, unconfirmed_launches
from cloudgpu.backends.aws.clusters.verified_deletion import RecordedInstances, TagSearch, has_token
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.events import Emit
from cloudgpu.backends.sweep.cluster_resources import ClusterResources
from cloudgpu.backends.sweep.plan import SweepPlan, SweepResult
from cloudgpu.backends.sweep.retained_resources import RetainedResource
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudGpuError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Note
from cloudgpu.state.record_store import RecordStore
from cloudgpu.workers import Workers

_AT_ONCE = 8
"""Maximum number of clusters deleted at the same time."""


@dataclass(frozen=True)
class UnrecordedDeletion:
    """Deletes clusters that have no record in this state home. Their resources are found by the cluster's token."""

    tags: TagSearch
    launches: UnansweredLaunches
    billing: ClusterBilling
    start_closing: Callable[[Iterable[LedgerEntry]], LedgerCloser]
    clock: Clock

    def delete(self, cluster: ClusterResources) -> None:
        """Delete a cluster and close its ledger rows in every region that is confirmed empty."""
        started_at = self.clock.now()
        regions = [region for region in cluster.regions if region != GLOBAL]
        failures = RegionFailures(cluster.cluster, regions or cluster.regions)

        def whose(resource: TaggedResource) -> bool:
            return has_token(resource, cluster.token)

        rows = self._rows(cluster)
        closing = self.start_closing(rows)
        done = self.tags.end_nodes(cluster.cluster, regions, whose, RecordedInstances())
        failures.add_all(done.errors)
        record_unanswered_launches(self.launches.context, rows, done.seen)
        self.launches.wait(unconfirmed_launches(rows), started_at)
        self.tags.delete_remaining(cluster.cluster, cluster.regions, whose, failures)
        self.launches.record_terminated_nodes(cluster.cluster, self._rows(cluster), whose, failures)
        closing.close(
            row for row in self._rows(cluster) if row.spending.region in regions and row.spending.region not in failures
        )
        failures.raise_any()

    def _rows(self, cluster: ClusterResources) -> tuple[LedgerEntry, ...]:
        return self.billing.rows_of(cluster.cluster, cluster.token)


@dataclass(frozen=True)
class SweepExecutor:
    """Carries out plans. A failure does not stop the other deletions.

    Attributes:
        delete_recorded: Function that deletes the cluster with this name by its record in this state home, and returns
            a message for each record that could not be updated.
        unrecorded: Deletes clusters that have no record in this state home.
        delete_storage: Function that deletes storage, given its name, token and region.
        unsaved: A message for each record that could not be updated so far.
    """

    records: RecordStore
    delete_recorded: Callable[[str], Iterable[str]]
    unrecorded: UnrecordedDeletion
    delete_storage: Callable[[str, str, str], None]
    emit: Emit
    unsaved: list[str] = field(default_factory=list)

    def apply_to_clusters(self, plan: SweepPlan) -> SweepResult:
        """Delete the plan's clusters concurrently."""
        clusters = plan.clusters_to_delete
        with Workers(min(_AT_ONCE, len(clusters)), "sweep") as pool:
            errors = list(pool.map(self._try_to_delete, clusters))
        return _result(clusters, errors)

    def apply_to_storage(self, plan: SweepPlan, clusters: SweepResult) -> SweepResult:
        """Delete the plan's storage, except storage whose cluster could not be deleted according to `clusters`."""
        remaining = {cluster.cluster for cluster, _ in clusters.failed if isinstance(cluster, ClusterResources)}
        storage = [resource for resource in plan.storage_to_delete if resource.made_for not in remaining]
        return _result(storage, [self._try_to_delete(resource) for resource in storage])

    def _try_to_delete(self, resource: ClusterResources | RetainedResource) -> CloudGpuError | None:
        try:
            self._delete(resource)
        except CloudGpuError as err:
            self.emit(Note(f"{resource.label}: {err.message}"))
            return err
        return None

    def _delete(self, resource: ClusterResources | RetainedResource) -> None:
        if isinstance(resource, RetainedResource):
            self.delete_storage(resource.name, resource.token, resource.region)
            return
        record = self.records.last_known(resource.cluster)
        if record is not None and record.identity.token == resource.token and record.state != "damaged":
            # The journal may list resources that the tag search does not find.
            self.unsaved.extend(self.delete_recorded(resource.cluster))
        else:
            self.unrecorded.delete(resource)


def _result(
    resources: Sequence[ClusterResources | RetainedResource], errors: Sequence[CloudGpuError | None]
) -> SweepResult:
    outcomes = list(zip(resources, errors, strict=True))
    return SweepResult(
        ended=tuple(resource for resource, err in outcomes if err is None),
        failed=tuple((resource, err) for resource, err in outcomes if err is not None),
    )
