"""Delete a cluster that has no record in this state home, using its tags and ledger rows."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from decimal import Decimal

from cloudgpu.aws.ec2.tagged_types import GLOBAL, OWNER_TAG
from cloudgpu.backends.aws.clusters.ledger_closing import LedgerCloser
from cloudgpu.backends.aws.clusters.region_failures import RegionFailures
from cloudgpu.backends.aws.clusters.row_restoration import record_unanswered_launches
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.clusters.unanswered_launches import UnansweredLaunches, unconfirmed_launches
from cloudgpu.backends.aws.clusters.verified_deletion import NODE_KINDS, RecordedInstances, TagSearch
from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.storage_outcome import NO_STORAGE_OUTCOME, StorageOutcome
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.errors import UsageError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.text import command


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
