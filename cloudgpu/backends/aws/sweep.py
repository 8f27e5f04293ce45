"""`sweep`: find every resource with cloudgpu tags in the account and delete the leftovers.

The steps are query, classify (`sweep_classification.py`) and, after the plan has been shown, delete: recorded clusters
like `down`, others by their token (`clusters/verified_deletion.py`), and then storage (`storage_manager.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from cloudgpu.backends.aws.account import AwsAccount, CloudContext
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.verified_deletion import DeletionPlan, VerifiedDeletion
from cloudgpu.backends.aws.storage import retained_storage
from cloudgpu.backends.aws.storage_manager import StorageManager
from cloudgpu.backends.aws.sweep_classification import LocalCluster, RegionSearch, SweepFindings, classify, is_open
from cloudgpu.backends.base import ImageStore
from cloudgpu.backends.billing.cost_ledger import CostLedger, check_ledger
from cloudgpu.backends.lifecycle.existing_cluster import cluster_lease
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep import (
    ClusterResources,
    SweepPlan,
    SweepRequest,
    SweepResult,
    retained_image,
)
from cloudgpu.catalog import load as load_catalog
from cloudgpu.cloud import CLUSTER_TAG, GLOBAL
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, StateError, UsageError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Emit, Note, report_count
from cloudgpu.state.record_store import RecordStore
from cloudgpu.targets import is_simulated
from cloudgpu.workers import Workers

_AT_ONCE = 8
"""Maximum number of clusters deleted at the same time."""


@dataclass(frozen=True)
class SweepQuery:
    """Collects the findings of a sweep.

    Attributes:
        is_busy: Function that returns whether another command is working on the cluster with this name. It raises
            StateError if the cluster's lease cannot be read.
    """

    cloud: AwsAccount
    images: ImageStore
    ledger: CostLedger
    records: RecordStore
    is_busy: Callable[[str], bool]
    emit: Emit

    def find(self, regions: Sequence[str]) -> SweepFindings:
        """Search these regions, or by default every enabled region and IAM. The result includes failed searches."""
        to_search = self._regions_to_search(regions)
        self.emit(
            Note(f"searching {', '.join(to_search) if regions else f'{len(to_search)} regions and IAM'}", detail=True)
        )
        places = to_search if regions else (*to_search, GLOBAL)
        with (
            report_count(self.emit, "searching", len(places), "places") as step,
            Workers(_AT_ONCE, "sweep") as pool,
        ):

            def search(place: str) -> RegionSearch:
                found = self._search(place)
                step()
                return found

            searches = tuple(pool.map(search, places))
        rows = self._rows()
        tagged = (resource.tags.get(CLUSTER_TAG, "") for search in searches for resource in search.tagged)
        return SweepFindings(
            regions=to_search,
            everywhere=not regions,
            searches=searches,
            endpoint=self.cloud.endpoint,
            rows=rows,
            local=self._local({*tagged, *(row.spending.cluster for row in rows)}),
            recorded=frozenset(record.name for record in self.records.clusters()),
        )

    def _regions_to_search(self, regions: Sequence[str]) -> tuple[str, ...]:
        """Return the regions to search: the requested regions, or all enabled regions."""
        try:
            enabled = tuple(self.cloud.regions())
        except CloudError:
            if not regions:
                raise
            return tuple(dict.fromkeys(regions))
        check_regions(regions, enabled)
        return tuple(dict.fromkeys(regions)) or enabled

    def _search(self, region: str) -> RegionSearch:
        """Search one region. If one request fails, the results of the successful requests are still returned."""
        result = self.cloud.search_all_clusters(region)
        unknown = next((err.message for err in result.failures.values()), "")
        denied = ""
        retained: tuple[RetainedResource, ...] = ()
        try:
            retained = () if region == GLOBAL else self._retained(region)
        except AuthError as err:
            # Users without storage permissions may still sweep clusters.
            denied = err.message
        except CloudGpuError as err:
            unknown = unknown or err.message
        return RegionSearch(region, result.found, retained, denied, unknown)

    def _retained(self, region: str) -> tuple[RetainedResource, ...]:
        storage = [
            retained_storage(stored, simulated=is_simulated(self.cloud.target))
            for stored in self.cloud.storage.found(region)
        ]
        return (*storage, *(retained_image(image) for image in self.images.found(region)))

    def _rows(self) -> tuple[LedgerEntry, ...]:
        """Return all rows, including closed ones, of this account's clusters that have an open row for nodes."""
        opened = [row for row in self.ledger.entries(state="open") if is_open(row)]
        if not opened:
            return ()  # avoids an unnecessary request for the account ID
        account = (self.cloud.target, self.cloud.account(), self.cloud.endpoint)
        names = dict.fromkeys(row.spending.cluster for row in opened if _account(row) == account)
        rows = (row for name in names for row in self.ledger.entries(cluster=name))
        return tuple(row for row in rows if _account(row) == account)

    def _local(self, names: Iterable[str]) -> dict[str, LocalCluster]:
        """Return this state home's records of the clusters with these names."""
        records = {name: self.records.last_known(name) for name in sorted(names)}
        local: dict[str, LocalCluster] = {}
        for name, record in records.items():
            if record is not None:
                busy, problem = self._lease(name)
                local[name] = LocalCluster(record.identity.token, record.state == "up", busy, problem)
        return local

    def _lease(self, name: str) -> tuple[bool, str]:
        """Return whether another command is working on the cluster, and the reason if this is unknown."""
        try:
            return self.is_busy(name), ""
        except StateError as err:
            return False, err.message


def check_regions(regions: Sequence[str], enabled: Sequence[str]) -> None:
    """Reject regions that are not enabled in the account."""
    unknown = [region for region in regions if region not in enabled]
    if unknown:
        message = f"regions not enabled in this account: {', '.join(unknown)}"
        raise UsageError(message, hint=f"enabled regions: {', '.join(enabled)}")


def _account(row: LedgerEntry) -> tuple[str, str, str]:
    return row.spending.target, row.spending.account, row.spending.endpoint


class AccountSweep:
    """Searches one account for leftover resources and deletes them. Uses the records of one state home."""

    def __init__(self, context: CloudContext, images: ImageStore, default_region: str) -> None:
        self._context = context
        self._query = SweepQuery(
            context.cloud, images, context.ledger, context.records, partial(_is_busy, context), context.emit
        )
        self._default_region = default_region
        self._unsaved: list[str] = []
        """A message for each record that could not be updated so far."""

    def plan(self, regions: Sequence[str], request: SweepRequest) -> SweepPlan:
        """Search these regions, or by default every enabled region and IAM, and decide what may be deleted."""
        return classify(self._query.find(regions), request, load_catalog(), self._context.clock.now())

    def delete_clusters(self, plan: SweepPlan) -> SweepResult:
        """Delete the plan's clusters concurrently. A failure does not stop the other deletions."""
        clusters = plan.clusters_to_delete
        with Workers(min(_AT_ONCE, len(clusters)), "sweep") as pool:
            errors = list(pool.map(self._try_to_delete, clusters))
        return _result(clusters, errors)

    def delete_storage(self, plan: SweepPlan, clusters: SweepResult) -> SweepResult:
        """Delete the plan's storage, except storage whose cluster could not be deleted according to `clusters`."""
        remaining = {cluster.cluster for cluster, _ in clusters.failed if isinstance(cluster, ClusterResources)}
        storage = [resource for resource in plan.storage_to_delete if resource.made_for not in remaining]
        return _result(storage, [self._try_to_delete(resource) for resource in storage])

    def check_recorded(self, swept: SweepResult) -> None:
        """Raise an error if the deletions could not be recorded."""
        names = ", ".join(resource.label for resource in swept.ended)
        check_ledger(self._context.ledger, f"confirmed deleted: {names}" if names else "the account was swept")
        unsaved = "; ".join(self._unsaved)
        if unsaved:
            message = f"confirmed deleted: {names}, but the records could not be updated: {unsaved}"
            raise StateError(message, hint="free some disk space, then run `cloudgpu down NAME` to update them")

    def _try_to_delete(self, resource: ClusterResources | RetainedResource) -> CloudGpuError | None:
        try:
            self._delete(resource)
        except CloudGpuError as err:
            self._context.emit(Note(f"{resource.label}: {err.message}"))
            return err
        return None

    def _delete(self, resource: ClusterResources | RetainedResource) -> None:
        if isinstance(resource, RetainedResource):
            manager = StorageManager(self._context.cloud, self._context, "")
            manager.delete_orphan(resource.name, resource.token, resource.region)
            return
        record = self._context.records.last_known(resource.cluster)
        if record is not None and record.identity.token == resource.token and record.state != "damaged":
            # The journal may list resources that the tag search does not find.
            self._unsaved.extend(
                Teardown(self._context).delete_unchecked(resource.cluster, self._default_region).unsaved
            )
        else:
            VerifiedDeletion(self._context).carry_out(self._plan_of(resource))

    def _plan_of(self, cluster: ClusterResources) -> DeletionPlan:
        """Return the plan for a cluster without a record in this state home: delete everything with its token.

        Storage is deleted after all clusters, and IAM resources only if the sweep searched IAM.
        """
        return DeletionPlan(
            cluster.cluster,
            tuple(region for region in cluster.regions if region != GLOBAL),
            "token",
            cluster.token,
            in_iam=GLOBAL in cluster.regions,
            with_storage=False,
        )


def _result(
    resources: Sequence[ClusterResources | RetainedResource], errors: Sequence[CloudGpuError | None]
) -> SweepResult:
    outcomes = list(zip(resources, errors, strict=True))
    return SweepResult(
        ended=tuple(resource for resource, err in outcomes if err is None),
        failed=tuple((resource, err) for resource, err in outcomes if err is not None),
    )


def _is_busy(context: CloudContext, name: str) -> bool:
    return cluster_lease(context, name).holder() is not None
