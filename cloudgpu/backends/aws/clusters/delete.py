"""`down`: delete a cluster, recorded or not, and report success only after a search for its tag finds nothing."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.failures import RegionFailures
from cloudgpu.backends.aws.clusters.launch_rows import (
    UnansweredLaunches,
    record_unanswered_launches,
    restore_missing_rows,
    unconfirmed_launches,
)
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.clusters.verified_deletion import (
    NODE_KINDS,
    LedgerCloser,
    RecordedInstances,
    ResourceFilter,
    ShuttingDownError,
    TagSearch,
    has_token,
)
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease_to_delete
from cloudgpu.backends.lifecycle.deletion import (
    cancel_unfinished_runs,
    check_identity,
    check_recorded,
    remove_local_record,
)
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.backends.storage import NO_STORAGE_OUTCOME, StorageOutcome
from cloudgpu.cloud.resources import GLOBAL, OWNER_TAG, TaggedResource
from cloudgpu.engine.base import Stack
from cloudgpu.errors import CloudGpuError, StateError, UsageError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.paths import Home, bundled_folder, unwritable_error
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

_SETTLE_S = 20.0
"""Seconds that may pass before a tag search on AWS lists a new resource."""


@dataclass(frozen=True)
class UnrecordedResult:
    """The result of deleting an unrecorded cluster.

    Attributes:
        usd: Cost of the ledger rows that the deletion closed.
        estimated: Whether the cost is an upper bound, because AWS did not report when a resource was terminated.
    """

    orphans: tuple[str, ...]
    usd: Decimal
    estimated: bool
    storage: StorageOutcome


class UnrecordedTeardown:
    """Deletes the resources that are tagged with a cluster's name and belong to the current owner or have no owner."""

    def __init__(self, context: CloudContext, name: str, regions: Sequence[str]) -> None:
        self._context = context
        self._name = name
        self._billing = ClusterBilling(context)
        self._tags = TagSearch(context)
        self._launches = UnansweredLaunches(context)
        self._failures = RegionFailures(name, regions)

    def end(self) -> UnrecordedResult:
        """Delete the cluster's resources and storage, and close its ledger rows in regions that are confirmed empty."""
        started_at = self._context.clock.now()
        rows = self._billing.rows_without_record(self._name)
        opened = {row.spending.entry_id for row in rows if row.state == "open"}
        closing = LedgerCloser.started(self._context, rows)
        result = self._tags.search(self._name, (*self._failures.asked, GLOBAL), lambda _: True)
        self._failures.add_all(result.failures)
        owned = [resource for resource in result.found if self._is_own(resource)]
        if result.found and not owned and not self._failures:
            raise _not_yours(self._name, result.found[0])
        orphans = self._nodes_ended(owned)
        terminated = [node for node in result.terminated if self._is_own(node)]
        record_unanswered_launches(self._context, rows, [*owned, *terminated])
        # Without a journal, it is unknown which launches got no response, so a single empty search is not enough.
        self._launches.wait(unconfirmed_launches(rows), started_at)
        orphans += self._tags.delete_remaining(
            self._name, (*self._failures.asked, GLOBAL), self._is_own, self._failures
        )
        rows = self._billing.rows_without_record(self._name)
        self._launches.record_terminated_nodes(self._name, rows, self._is_own, self._failures)
        closed = self._closed(closing, opened)
        storage = self._storage_ended()
        self._failures.raise_any()
        usd = self._billing.usd(closed, self._context.clock.now())
        return UnrecordedResult(
            orphans, usd, any(part.estimated for row in closed for part in row.parts.values()), storage
        )

    def _is_own(self, resource: TaggedResource) -> bool:
        return self._tags.is_own(resource, "")

    def _nodes_ended(self, owned: Sequence[TaggedResource]) -> tuple[str, ...]:
        if not any(resource.kind in NODE_KINDS for resource in owned):
            return ()
        done = self._tags.end_nodes(self._name, self._failures.asked, self._is_own, RecordedInstances())
        self._failures.add_all(done.errors)
        return done.ended

    def _closed(self, closing: LedgerCloser, opened: Set[str]) -> tuple[LedgerEntry, ...]:
        """Close the rows of every region that is confirmed empty. Return all rows whose entry ID is in `opened`."""
        rows = [row for row in self._billing.rows_without_record(self._name) if row.spending.entry_id in opened]
        closing.close(row for row in rows if row.spending.region not in self._failures)
        return tuple(row for row in self._billing.rows_without_record(self._name) if row.spending.entry_id in opened)

    def _storage_ended(self) -> StorageOutcome:
        searched = [region for region in self._failures.asked if region not in self._failures]
        for region in searched[:1]:
            with self._failures.guard(region):
                return ClusterStorage(self._context).delete_unrecorded(self._name, searched)
        return NO_STORAGE_OUTCOME


def _not_yours(name: str, resource: TaggedResource) -> UsageError:
    owner = resource.tags.get(OWNER_TAG, "")
    message = f"cluster {name} in {resource.region} belongs to {owner}; nothing was deleted"
    return UsageError(message, hint=command("cloudgpu", "down", name, CLOUDGPU_OWNER=owner))


def stack_of(home: Home, record: ClusterRecord, region: str = "") -> Stack:
    """Return the stack of a recorded cluster in one region, by default the region of the last launch attempt."""
    region = region or record.placement.region
    return Stack(
        name=record.name,
        region=region,
        program=bundled_folder("infra"),
        config=record.placement.config,
        journal=home.cluster(record.name).journal(region),
    )


class Teardown:
    """Deletes clusters in one cloud and updates their records in one state home."""

    def __init__(self, context: CloudContext) -> None:
        self._context = context
        self._billing = ClusterBilling(context)
        self._tags = TagSearch(context)
        self._launches = UnansweredLaunches(context)

    def down(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster, whether recorded or found only by a tag search. Succeed if there is nothing to delete."""
        ended = self.delete(name, default_region)
        check_recorded(self._context, ended, f"cluster {name} is deleted, verified by tag search")
        return ended

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster like `down`, but let the caller check whether the deletion could be recorded."""
        with hold_lease_to_delete(self._context, require_cluster_name(name)):
            return self._delete_locked(name, default_region)

    def _delete_locked(self, name: str, default_region: str) -> DeletionResult:
        record = self._recorded(name)
        if record is None:
            return self._end_unrecorded(name, default_region)
        return self.end(record, whose=lambda resource: self._tags.is_own(resource, record.identity.token))

    def end(self, record: ClusterRecord, *, whose: ResourceFilter | None = None) -> DeletionResult:
        """Delete a recorded cluster. The caller must hold the cluster's lease.

        Without `whose`, delete only resources tagged with the cluster's token, and do not cancel the cluster's runs.
        """
        record = self._context.records.cluster(record.name) or record
        check_identity(record, self._context.cloud)
        restore_missing_rows(self._context, record)
        rows = self._billing.rows(record)
        regions = _distinct([*record.placement.regions, *self._regions_of(record.name, rows)])
        failures = RegionFailures(record.name, regions)
        record = self._mark_ending(record)
        closing = LedgerCloser.started(self._context, rows)
        belongs = whose or (lambda resource: has_token(resource, record.identity.token))
        orphans = self._delete_resources(record, belongs, failures, may_be_interrupted=whose is not None)
        # A region that is confirmed empty no longer costs anything, even if other regions failed.
        closing.close([row for row in self._billing.rows(record) if row.spending.region not in failures])
        storage = NO_STORAGE_OUTCOME
        with failures.guard(record.placement.region):
            storage = ClusterStorage(self._context).end(record)
        failures.raise_any(self._not_enabled(record, failures))
        rows = self._billing.rows(record)
        unsaved = cancel_unfinished_runs(self._context, record.name) if whose is not None else ()
        return DeletionResult(
            cluster=record.name,
            known=True,
            unsaved=(*unsaved, *remove_local_record(self._context, record.name)),
            instances=record.placement.instance_ids,
            orphans=orphans,
            usd=self._billing.usd(rows, self._context.clock.now()),
            estimated=any(part.estimated for row in rows for part in row.parts.values()),
            simulated=record.simulated,
            run_id=record.identity.run_id,
            storage=storage,
        )

    def delete_region(self, record: ClusterRecord, region: str) -> None:
        """Delete the cluster's resources in one region."""
        try:
            engine = self._context.cloud.engine(record)
        except UsageError as err:
            # Without the Pulumi CLI, the engine's state cannot be read, but a tag search still finds every resource.
            raise StateError(err.message, hint=err.hint) from err
        if record.identity.engine == "pulumi":
            self._context.home.ensure()  # the Pulumi CLI writes its state before and after every call
        try:
            engine.destroy(stack_of(self._context.home, record, region), self._context.emit)
        except OSError as err:
            raise unwritable_error(self._context.home.root, err) from err

    def _recorded(self, name: str) -> ClusterRecord | None:
        """Return the cluster's record. If it is missing or unreadable, return None: the caller then searches by tag."""
        try:
            return self._context.records.cluster(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; searching for the cluster by tag instead"))
            return None

    def _end_unrecorded(self, name: str, default_region: str) -> DeletionResult:
        """Delete resources tagged with the name in the default region and in every region in the ledger or journals."""
        rows = self._billing.rows_without_record(name)
        regions = _distinct([default_region, *self._regions_of(name, rows)])
        done = UnrecordedTeardown(self._context, name, regions).end()
        return DeletionResult(
            name,
            known=False,
            unsaved=(*cancel_unfinished_runs(self._context, name), *remove_local_record(self._context, name)),
            orphans=done.orphans,
            usd=done.usd,
            estimated=done.estimated,
            simulated=is_simulated(self._context.cloud.target),
            storage=done.storage,
        )

    def _regions_of(self, name: str, rows: Sequence[LedgerEntry]) -> list[str]:
        """Return the regions that this state home's ledger and journals list for a cluster."""
        root = self._context.home.cluster(name).root
        journals = sorted(path.stem for path in root.glob("*.journal")) if root.is_dir() else []
        return [*(row.spending.region for row in rows), *journals]

    def _not_enabled(self, record: ClusterRecord, failures: RegionFailures) -> dict[str, str]:
        """Return an explanation for each failed region that is not enabled in the account."""
        if not failures:
            return {}
        try:
            enabled = (*self._context.cloud.regions(), GLOBAL)
        except CloudGpuError:
            return {}
        path = self._context.home.cluster(record.name).record
        why = f"the region is not enabled in this account; enable it, or remove it from the record {path}"
        return {region: why for region in failures.regions if region not in enabled}

    def _mark_ending(self, record: ClusterRecord) -> ClusterRecord:
        """Record that the cluster is being deleted. A full disk must not prevent the deletion."""
        try:
            return self._context.records.save_cluster(record.in_state("ending"), self._context.clock.now())
        except StateError as err:
            self._context.emit(Note(f"{err.message}; continuing anyway"))
            return record

    def _delete_resources(
        self, record: ClusterRecord, whose: ResourceFilter, failures: RegionFailures, *, may_be_interrupted: bool
    ) -> tuple[str, ...]:
        """Delete the nodes, the resources in the journals, and then the resources found only by the tag search.

        Args:
            record: Record of the cluster.
            whose: Predicate that selects the resources of the cluster.
            failures: Collects the errors, and lists the regions to process.
            may_be_interrupted: Whether an earlier command may have been killed while it launched the cluster.

        Returns:
            The deleted resources that are listed in neither the record nor a journal.
        """
        started_at = self._context.clock.now()
        name, regions = record.name, failures.asked
        if not regions:
            return ()  # the launch was interrupted before its first attempt
        unconfirmed = unconfirmed_launches(self._billing.rows(record))
        has_journal = {region for region in regions if not may_be_interrupted or self._has_journal(record, region)}
        done = self._tags.end_nodes(
            name, regions, whose, RecordedInstances(record.placement.region, record.placement.instance_ids)
        )
        failures.add_all(done.errors)
        own = [node for node in done.seen if has_token(node, record.identity.token)]
        record_unanswered_launches(self._context, self._billing.rows(record), own)
        # Unreachable regions come last, because deleting by journal retries every call.
        reachable_first = sorted(
            (region for region in regions if not isinstance(done.errors.get(region), ShuttingDownError)),
            key=failures.__contains__,
        )
        unreadable = {region for region in reachable_first if self._delete_by_journal(record, region, failures)}
        orphans = done.ended + self._tags.delete_remaining(name, (*regions, GLOBAL), whose, failures)
        unanswered = [row for row in unconfirmed if row.spending.region not in has_journal - unreadable]
        if self._launches.wait(unanswered, started_at) or self._settled(unreadable):
            orphans += self._tags.delete_remaining(name, (*regions, GLOBAL), whose, failures)
        rows = self._billing.rows(record)
        self._launches.record_terminated_nodes(
            name, rows, lambda resource: has_token(resource, record.identity.token), failures
        )
        return orphans

    def _settled(self, unreadable: Set[str]) -> bool:
        """Wait until a tag search would list every resource in the journals of the `unreadable` regions.

        Returns:
            False if `unreadable` is empty, so that there was nothing to wait for.
        """
        if unreadable:
            self._context.clock.sleep(1.0 if is_simulated(self._context.cloud.target) else _SETTLE_S)
        return bool(unreadable)

    def _delete_by_journal(self, record: ClusterRecord, region: str, failures: RegionFailures) -> bool:
        """Delete the resources that a region's journal lists. Return True if the journal cannot be read."""
        with failures.guard(region):
            try:
                self.delete_region(record, region)
            except StateError as err:
                self._context.emit(Note(f"{err.message}; searching by tag instead"))
                return True
        return False

    def _has_journal(self, record: ClusterRecord, region: str) -> bool:
        """Return True if the direct engine has a journal. The engine then waits for launches that got no response."""
        return record.identity.engine == "direct" and stack_of(self._context.home, record, region).journal.exists()


def _distinct(regions: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region for region in regions if region))
