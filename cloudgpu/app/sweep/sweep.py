"""`sweep`: find every resource with cloudgpu tags in the account and delete the leftovers."""

from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from cloudgpu.app.clusters.delete import Teardown
from cloudgpu.app.clusters.delete_many import leftover_lines
from cloudgpu.app.clusters.ledger_closing import LedgerCloser
from cloudgpu.app.clusters.region_failures import RegionFailures
from cloudgpu.app.clusters.storage import ClusterStorage
from cloudgpu.app.clusters.tagged_resources import TOKEN_TAG, RecordedInstances, TagSearch, has_token
from cloudgpu.app.clusters.unanswered_launches import UnansweredLaunches, unconfirmed_launches
from cloudgpu.app.images.bake import ImageStore
from cloudgpu.app.sweep.cluster_resources import (
    CLUSTER_TAG,
    ClusterResources,
    LocalKnowledge,
    SweepDecision,
    SweepRequest,
    decide_on_cluster,
    group_by_cluster,
)
from cloudgpu.app.sweep.ledger_only import SearchCoverage, clusters_without_resources, latest_appearance
from cloudgpu.app.sweep.retained_resources import RetainedResource, StorageUsers, retained_image, retained_storage
from cloudgpu.app.sweep.retained_resources import decide_on_resource as decide_retained
from cloudgpu.backends.base import BillableResource, TaggedResource
from cloudgpu.backends.billing import ClusterBilling
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.lenient_ledger import check_ledger
from cloudgpu.catalog import load as load_catalog
from cloudgpu.engine.lease import ClusterLease
from cloudgpu.errors import AuthError, CloudError, CloudGpuError, StateError, TeardownError, UsageError
from cloudgpu.run.progress import Note

_AT_ONCE = 8
"""Maximum number of regions searched, or clusters deleted, at the same time."""
_IAM = "global"
"""Pseudo-region of IAM, which is searched once."""


@dataclass(frozen=True)
class SweepFindings:
    """The result of searching the regions.

    Attributes:
        regions: Regions that were searched completely.
        unknown: Regions that could not be searched and may still contain resources, each with the reason.
        clusters: The clusters, each with the decision on whether it may be deleted.
        retained: Storage and images, each with the decision on whether it may be deleted.
        unseen: Regions in which the caller may not list storage and images, each with the reason.
    """

    regions: tuple[str, ...]
    unknown: tuple[tuple[str, str], ...]
    clusters: tuple[tuple[ClusterResources, SweepDecision], ...]
    retained: tuple[tuple[RetainedResource, SweepDecision], ...] = ()
    unseen: tuple[tuple[str, str], ...] = ()

    @property
    def deletable_storage(self) -> tuple[RetainedResource, ...]:
        """Storage that may be deleted."""
        return tuple(storage for storage, decision in self.retained if decision.may_delete)

    @property
    def going(self) -> tuple[ClusterResources, ...]:
        """Clusters that may be deleted."""
        return tuple(cluster for cluster, decision in self.clusters if decision.may_delete)


@dataclass(frozen=True)
class SweepResult:
    """The deleted resources, and the resources that could not be deleted, with their errors."""

    ended: tuple[ClusterResources | RetainedResource, ...]
    failed: tuple[tuple[ClusterResources | RetainedResource, CloudGpuError], ...] = ()

    def combined_with(self, other: "SweepResult") -> "SweepResult":
        """Return the combined results."""
        return SweepResult((*self.ended, *other.ended), (*self.failed, *other.failed))


class Sweep:
    """Searches one account for leftover resources and deletes them. Uses the records of one state home."""

    def __init__(self, context: CloudContext, images: ImageStore) -> None:
        self._context = context
        self._images = images
        self._billing = ClusterBilling(context)
        self._unsaved: list[str] = []

    def look(self, regions: Sequence[str], request: SweepRequest) -> SweepFindings:
        """Search these regions, or by default every enabled region and IAM.

        Raises:
            UsageError: A region is not enabled in the account.
            CloudError: No region was specified and the enabled regions cannot be listed.
        """
        to_search = self._regions_to_search(regions)
        self._context.emit(
            Note(f"searching {', '.join(to_search) if regions else f'{len(to_search)} regions and IAM'}")
        )
        with_iam = to_search if regions else (*to_search, _IAM)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sweep") as pool:
            results = dict(zip(with_iam, pool.map(self._search_region, with_iam), strict=True))
        unknown = {region: result.unknown for region, result in results.items() if result.unknown}
        if unknown and results.pop(_IAM, None) is not None:
            # A cluster in a region that cannot be searched may still need its IAM roles, also for its schedule.
            unknown.setdefault(_IAM, "left unchanged while a region cannot be searched")
        resources = [resource for result in results.values() for resource in result.tagged]
        searched = tuple(region for region in to_search if region not in unknown)
        candidates = (*group_by_cluster(resources, load_catalog(), self._now()), *self._unbacked(resources, searched))
        clusters = tuple(
            (cluster, self._decide(cluster, request)) for cluster in candidates if _is_covered(cluster, request)
        )
        going = {cluster.cluster for cluster, decision in clusters if decision.may_delete}
        around = self._around(resources, going, all_asked=not unknown and not regions)
        retained = [
            resource for result in results.values() for resource in result.retained if _is_covered(resource, request)
        ]
        return SweepFindings(
            regions=searched,
            unknown=tuple(unknown.items()),
            clusters=clusters,
            retained=tuple((resource, decide_retained(resource, around, request)) for resource in retained),
            unseen=tuple((region, result.denied) for region, result in results.items() if result.denied),
        )

    def delete_storage(self, storage: Sequence[RetainedResource], clusters: "SweepResult") -> SweepResult:
        """Delete storage, unless its cluster could not be deleted. A failure does not stop the other deletions."""
        remaining = {cluster.cluster for cluster, _ in clusters.failed if isinstance(cluster, ClusterResources)}
        ended: list[RetainedResource] = []
        failed: list[tuple[RetainedResource, CloudGpuError]] = []
        for resource in (resource for resource in storage if resource.made_for not in remaining):
            try:
                ClusterStorage(self._context).end_orphan(resource.name, resource.token, resource.region)
                ended.append(resource)
            except CloudGpuError as err:
                self._context.emit(Note(f"{resource.label}: {err.message}"))
                failed.append((resource, err))
        return SweepResult(tuple(ended), tuple(failed))

    def end(self, clusters: Sequence[ClusterResources], default_region: str) -> SweepResult:
        """Delete these clusters concurrently. A failure does not stop the other deletions."""
        end = self._ender(default_region)
        with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(clusters))), thread_name_prefix="sweep") as pool:
            outcomes = list(zip(clusters, pool.map(end, clusters), strict=True))
        return SweepResult(
            ended=tuple(cluster for cluster, err in outcomes if err is None),
            failed=tuple((cluster, err) for cluster, err in outcomes if err is not None),
        )

    def check_recorded(self, swept: "SweepResult") -> None:
        """Raise an error if the deletions could not be recorded.

        Raises:
            LedgerError: The ledger cannot be read or written.
            StateError: A record cannot be written or removed.
        """
        names = ", ".join(resource.label for resource in swept.ended)
        check_ledger(self._context, f"confirmed deleted: {names}" if names else "the account was swept")
        if self._unsaved:
            message = f"confirmed deleted: {names}, but the records could not be updated: {'; '.join(self._unsaved)}"
            raise StateError(message, hint="free some disk space, then run `cloudgpu down NAME` to update them")

    def _regions_to_search(self, regions: Sequence[str]) -> tuple[str, ...]:
        """Return the regions to search: the requested regions, or all enabled regions."""
        try:
            enabled = tuple(self._context.cloud.regions())
        except CloudError:
            if not regions:
                raise
            return tuple(dict.fromkeys(regions))
        check_regions(regions, enabled)
        return tuple(dict.fromkeys(regions)) or enabled

    def _search_region(self, region: str) -> "_RegionResult":
        """Search one region. A failed request does not discard the results of the other requests."""
        result = self._context.cloud.search_all_clusters(region)
        unknown = next((err.message for err in result.failures.values()), "")
        if region == _IAM:
            return _RegionResult(result.found, unknown=unknown)
        denied = ""
        retained: tuple[RetainedResource, ...] = ()
        try:
            retained = self._retained(region)
        except AuthError as err:
            # Users without storage permissions may still sweep clusters.
            denied = err.message
        except CloudGpuError as err:
            unknown = unknown or err.message
        return _RegionResult(result.found, retained, denied, unknown)

    def _retained(self, region: str) -> "tuple[RetainedResource, ...]":
        storage = [retained_storage(stored) for stored in self._context.cloud.storage().found(region)]
        return (*storage, *(retained_image(image) for image in self._images.found(region)))

    def _unbacked(self, resources: Sequence[BillableResource], searched: Sequence[str]) -> tuple[ClusterResources, ...]:
        """Return the clusters that exist only in the ledger."""
        rows = self._context.ledger.entries(state="open")
        tokens = {resource.tags.get(TOKEN_TAG, "") for resource in resources}
        return (
            clusters_without_resources(rows, self._context.cloud, SearchCoverage(frozenset(searched), tokens))
            if rows
            else ()
        )

    def _around(self, resources: Sequence[BillableResource], going: Set[str], *, all_asked: bool) -> StorageUsers:
        """Return the clusters for which storage may have been created, except clusters that are being deleted."""
        here = {record.name for record in self._context.records.clusters()}
        clusters = {resource.tags[CLUSTER_TAG] for resource in resources if CLUSTER_TAG in resource.tags}
        return StorageUsers(clusters - going, here - going, all_asked)

    def _decide(self, cluster: ClusterResources, request: SweepRequest) -> SweepDecision:
        record = self._context.records.last_known(cluster.cluster)
        known = record is not None and record.token == cluster.token
        up = known and record is not None and record.state == "up"
        if cluster.billed_in and not known:
            at = latest_appearance(self._billing.rows_of(cluster.cluster, cluster.token), self._context.cloud.endpoint)
            if at > self._now():
                why = f"no tagged resources; a launch may still appear until {at:%Y-%m-%d %H:%M:%S} UTC"
                return SweepDecision(may_delete=False, why=why)
        try:
            busy = record is not None and self._busy(cluster.cluster)
        except StateError as err:
            return SweepDecision(may_delete=False, why=err.message)
        return decide_on_cluster(cluster, LocalKnowledge(known, up, busy=busy), request, self._now())

    def _busy(self, name: str) -> bool:
        path = self._context.home.cluster(name).root / "lease"
        return ClusterLease(path, self._context.clock, self._context.owner).holder() is not None

    def _now(self) -> datetime:
        return self._context.clock.now()

    def _ender(self, default_region: str) -> Callable[[ClusterResources], CloudGpuError | None]:
        def end(cluster: ClusterResources) -> CloudGpuError | None:
            try:
                self._end(cluster, default_region)
            except CloudGpuError as err:
                self._context.emit(Note(f"{cluster.cluster}: {err.message}"))
                return err
            return None

        return end

    def _end(self, cluster: ClusterResources, default_region: str) -> None:
        record = self._context.records.last_known(cluster.cluster)
        if record is not None and record.token == cluster.token and record.state != "damaged":
            # The journal may list resources that the tag search does not find.
            self._unsaved += Teardown(self._context).delete(cluster.cluster, default_region).unsaved
            return
        self._end_unknown(cluster)

    def _end_unknown(self, cluster: ClusterResources) -> None:
        """Delete a cluster that has no record in this state home. Find its resources by searching for its token.

        Raises:
            TeardownError: Some resources remain, or a region cannot be searched.
        """
        started_at = self._now()
        regions = [region for region in cluster.regions if region != _IAM]
        failures = RegionFailures(cluster.cluster, regions or cluster.regions)

        def whose(resource: TaggedResource) -> bool:
            return has_token(resource, cluster.token)

        tags, launches = TagSearch(self._context), UnansweredLaunches(self._context)
        rows = self._billing.rows_of(cluster.cluster, cluster.token)
        closing = LedgerCloser.started(self._context, rows)
        done = tags.end_nodes(cluster.cluster, regions, whose, RecordedInstances())
        failures.add_all(done.errors)
        self._billing.record_launched(rows, done.seen)
        launches.wait(unconfirmed_launches(rows), started_at)
        tags.delete_remaining(cluster.cluster, cluster.regions, whose, failures)
        launches.record_terminated_nodes(
            cluster.cluster, self._billing.rows_of(cluster.cluster, cluster.token), whose, failures
        )
        closing.close(
            row
            for row in self._billing.rows_of(cluster.cluster, cluster.token)
            if row.spending.region in regions and row.spending.region not in failures
        )
        failures.raise_any()


def _is_covered(resource: ClusterResources | RetainedResource, request: SweepRequest) -> bool:
    """Return True if the request includes the resource's owner."""
    return not request.owners or resource.owner in request.owners


@dataclass(frozen=True)
class _RegionResult:
    """The resources of one region, or of IAM."""

    tagged: Sequence[BillableResource]
    retained: tuple[RetainedResource, ...] = ()
    denied: str = ""
    """Reason why storage and images could not be listed, or empty."""
    unknown: str = ""
    """Reason why another request failed, or empty."""


def check_regions(regions: Sequence[str], enabled: Sequence[str]) -> None:
    """Reject regions that are not enabled in the account.

    Raises:
        UsageError: At least one region is not enabled; the hint lists the enabled regions.
    """
    unknown = [region for region in regions if region not in enabled]
    if unknown:
        message = f"not enabled in the account: {', '.join(unknown)}"
        raise UsageError(message, hint=f"enabled regions: {', '.join(enabled)}")


def sweep_error(findings: SweepFindings, swept: SweepResult) -> TeardownError | None:
    """Return one error that lists everything that remains or is unknown, or None if the sweep is complete."""
    unknown = [f"{region}: unknown: {why}" for region, why in findings.unknown]
    left = [f"{resource.label}: {line}" for resource, err in swept.failed for line in leftover_lines(err)]
    if not unknown and not left:
        return None
    unreachable = [region for region, _ in findings.unknown if region != _IAM]
    parts = [
        _clause(
            sum(isinstance(resource, ClusterResources) for resource, _ in swept.failed),
            "cluster",
            "not confirmed deleted",
        ),
        _clause(
            sum(isinstance(resource, RetainedResource) for resource, _ in swept.failed),
            "piece of storage",
            "not confirmed deleted",
        ),
        _clause(len(unreachable), "region", "unreachable")
        if unreachable
        else "IAM could not be searched"
        if unknown
        else "",
    ]
    message = " and ".join(part for part in parts if part)
    return TeardownError(
        message, left=[*left, *unknown], hint="run `cloudgpu sweep` again; it repeats the whole search"
    )


def _clause(count: int, noun: str, what: str) -> str:
    if not count:
        return ""
    several = noun.replace("piece", "pieces") if noun.startswith("piece") else f"{noun}s"
    return f"{count} {noun} is {what}" if count == 1 else f"{count} {several} are {what}"
