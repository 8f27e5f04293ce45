"""The sequence that deletes the resources of a cluster and verifies that none is left. There is no other.

`down` of a recorded or an unrecorded cluster, `sweep`, and the cleanup after a failed launch differ only in the values
of a `DeletionPlan`. `VerifiedDeletion.carry_out` carries it out in this order:

1. Terminate the nodes in all regions concurrently, because they cost most. Recorded nodes are terminated by their IDs
   even if the search fails. Bill the nodes whose launch response was lost, while AWS still lists them.
2. Note which NAT gateways and Elastic IPs still exist. If another program has deleted one, its end on the bill is an
   estimate.
3. Delete what the record's journals list. A journal that cannot be read is replaced by the tag search.
4. If nodes may exist that a search did not list yet (a launch without a response, an unreadable journal), wait until a
   search would list them. Nothing else is deleted before, because such a node uses the security group, and its expiry
   schedule must end it if this process does not.
5. Delete what a tag search finds in each region and search again: only a search that finds nothing confirms that a
   region is empty. IAM comes last, and only if no region has failed; IAM resources of a cluster with the same name in
   another region stay. Bill the nodes without a launch response that have terminated since.
6. Close the ledger rows of the regions that are confirmed empty, even if other regions failed, because an empty region
   no longer costs anything.
7. Delete the cluster's storage, except in regions that have failed, where nodes may still use it.
8. Raise one error for everything that failed. Only if there is none may the caller remove the record.

An error in one region is collected in `RegionFailures`: the region is skipped from then on, and the other regions
continue. No step depends on the state home or on the ledger, which is lenient: their failures are reported after the
deletion (`lifecycle/deletion.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cloudgpu.aws.ec2.tagging import SearchResult
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import (
    LedgerCloser,
    record_unanswered_launches,
    unconfirmed_launches,
    wait_for_launches,
)
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.clusters.tag_search import (
    NODE_KINDS,
    RecordedInstances,
    ResourceFilter,
    ShuttingDownError,
    TagSearch,
    Whose,
    region_of,
    resource_filter,
)
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.storage import NO_STORAGE_OUTCOME, StorageOutcome
from cloudgpu.cloud import GLOBAL, TOKEN_TAG, TaggedResource
from cloudgpu.errors import CloudGpuError, StateError, TeardownError, UsageError, decisive_cause
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.paths import unwritable_error
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.targets import is_simulated
from cloudgpu.text import command

_SETTLE_S = 20.0
"""Seconds that may pass before a tag search on AWS lists a new resource."""


@dataclass(frozen=True)
class DeletionPlan:
    """What is known about a cluster that is to be deleted, and which resources may be deleted.

    `down` has the record, and also deletes what the owner has under the cluster's name; without a record, only the
    latter, which a search has found before. A failed launch has the record, but deletes only what has its token.
    `sweep` has neither record nor search: it deletes what has the token, without the storage.

    Attributes:
        regions: Every region in which resources may exist; none if a launch was interrupted before its first attempt.
        whose: Which resources with the cluster's name to delete.
        token: The cluster's token; empty if it is unknown.
        record: The cluster's record; None if the cluster is known only by its tags.
        answered: Regions whose launches all got a response, or whose journal lists those that got none.
        everywhere: Whether `regions` includes every region that is enabled in the account.
        in_iam: Whether to delete the cluster's IAM resources.
        with_storage: Whether to delete the storage that was created for the cluster.
        found: The result of the search of all regions that made the plan, if one did.
    """

    name: str
    regions: tuple[str, ...]
    whose: Whose
    token: str = ""
    record: ClusterRecord | None = None
    answered: frozenset[str] = frozenset()
    everywhere: bool = False
    in_iam: bool = True
    with_storage: bool = True
    found: SearchResult | None = None

    @property
    def recorded_instances(self) -> RecordedInstances:
        """The instances that the record lists."""
        if self.record is None:
            return RecordedInstances()
        return RecordedInstances(self.record.placement.region, self.record.placement.instance_ids)

    @property
    def seen(self) -> tuple[TaggedResource, ...]:
        """The resources that the search found, including terminated nodes."""
        return (*self.found.found, *self.found.terminated) if self.found else ()

    @property
    def has_nodes(self) -> bool:
        """False if the search succeeded in all regions and found no node to terminate."""
        found = self.found
        return not found or bool(found.failures) or any(resource.kind in NODE_KINDS for resource in found.found)


@dataclass(frozen=True)
class DeletedResources:
    """The resources of a cluster that was deleted.

    Attributes:
        orphans: The deleted resources that neither the record nor a journal listed, for example `instance i-0abc`.
        closed: The ledger rows that were open before the deletion.
    """

    orphans: tuple[str, ...]
    closed: tuple[LedgerEntry, ...]
    storage: StorageOutcome


class RegionFailures:
    """Collects errors by region, so that a failure in one region does not stop work in the other regions.

    Args:
        name: Name of the cluster.
        regions: Every region to process.
    """

    def __init__(self, name: str, regions: Sequence[str]) -> None:
        self._name = name
        self._regions = tuple(regions)
        self._errors: dict[str, list[CloudGpuError]] = {}

    def __bool__(self) -> bool:
        """Return True if anything failed."""
        return bool(self._errors)

    def __contains__(self, region: str) -> bool:
        """Return True if something failed in this region."""
        return region in self._errors

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in which something failed; `global` stands for IAM."""
        return tuple(self._errors)

    def add(self, region: str, err: CloudGpuError) -> None:
        """Add an error, unless the region already has one with the same message."""
        noted = self._errors.setdefault(region, [])
        if err.message not in {known.message for known in noted}:
            noted.append(err)

    def add_all(self, failures: Mapping[str, CloudGpuError]) -> None:
        """Add the errors from a search, by region."""
        for region, err in failures.items():
            self.add(region, err)

    @contextmanager
    def guard(self, region: str) -> Iterator[None]:
        """Add a `CloudGpuError` that the block raises to the region's errors instead of propagating the error."""
        try:
            yield
        except CloudGpuError as err:
            self.add(region, err)

    def raise_any(self, remarks: Mapping[str, str] | None = None) -> None:
        """Raise one `TeardownError` for everything that failed, whatever caused it.

        Args:
            remarks: Region -> additional explanation for the user.
        """
        errors = [err for noted in self._errors.values() for err in noted]
        if not errors:
            return
        if len(errors) == 1 and isinstance(errors[0], TeardownError) and self.regions == self._regions and not remarks:
            raise errors[0]
        left = [
            f"{_place(region)}: {line}{_remark(remarks, region)}"
            for region, noted in self._errors.items()
            for err in noted
            for line in tuple(getattr(err, "left", ())) or (err.message,)
        ]
        again = f"run `{command('cloudgpu', 'down', self._name)}` again"
        hints = dict.fromkeys(err.hint for err in errors if err.hint and self._name not in err.hint)
        places = ", ".join(_place(region) for region in self._errors)
        message = f"cluster {self._name} is not confirmed deleted in {places}"
        raise TeardownError(message, left=left, hint="; ".join([*hints, again])) from decisive_cause(errors)


def _place(region: str) -> str:
    return "IAM" if region == GLOBAL else region


def _remark(remarks: Mapping[str, str] | None, region: str) -> str:
    return f" ({remarks[region]})" if remarks and region in remarks else ""


class VerifiedDeletion:
    """Deletes the resources of clusters and verifies that nothing is left. The module describes the steps."""

    def __init__(self, context: CloudContext) -> None:
        self._context = context
        self._tags = TagSearch(context)
        self._billing = ClusterBilling(context)

    def carry_out(self, plan: DeletionPlan) -> DeletedResources:
        """Delete everything that the plan covers, or raise one error that lists what is not confirmed deleted."""
        started_at = self._context.clock.now()
        failures = RegionFailures(plan.name, plan.regions or (GLOBAL,))
        failures.add_all(plan.found.failures if plan.found else {})
        rows = self._rows(plan)
        opened = {row.spending.entry_id for row in rows if row.state == "open"}
        orphans, shutting_down = self._end_nodes(plan, failures)
        closing = LedgerCloser.started(self._context, rows)
        unreadable = self._delete_by_journals(plan, shutting_down, failures)
        unanswered = [
            row for row in unconfirmed_launches(rows) if row.spending.region not in plan.answered - unreadable
        ]
        if not wait_for_launches(self._context, unanswered, started_at):
            self._settle(unreadable)
        orphans += self._delete_remaining(plan, failures)
        self._bill_terminated_nodes(plan, failures)
        empty = [region for region in plan.regions if region not in failures]
        closing.close(
            row for row in self._rows(plan) if row.spending.entry_id in opened and row.spending.region in empty
        )
        storage = self._delete_storage(plan, empty, failures)
        failures.raise_any(self._not_enabled(plan, failures))
        closed = tuple(row for row in self._rows(plan) if row.spending.entry_id in opened)
        return DeletedResources(orphans, closed, storage)

    def _rows(self, plan: DeletionPlan) -> tuple[LedgerEntry, ...]:
        """Return the ledger rows of the cluster."""
        if plan.whose == "owner":
            return self._billing.rows_without_record(plan.name)
        return self._billing.rows_of(plan.name, plan.token)

    def _to_delete(self, plan: DeletionPlan) -> ResourceFilter:
        return resource_filter(plan.whose, plan.token, self._context.owner)

    def _billed(self, plan: DeletionPlan) -> ResourceFilter:
        """Return a filter for the nodes that belong to the cluster's ledger rows."""
        return resource_filter("owner" if plan.whose == "owner" else "token", plan.token, self._context.owner)

    def _end_nodes(self, plan: DeletionPlan, failures: RegionFailures) -> tuple[tuple[str, ...], frozenset[str]]:
        """Terminate the nodes. Return those that no record lists, and the regions that are shutting nodes down."""
        if not plan.has_nodes:
            record_unanswered_launches(self._context, self._rows(plan), plan.seen)
            return (), frozenset()
        done = self._tags.end_nodes(plan.name, plan.regions, self._to_delete(plan), plan.recorded_instances)
        failures.add_all(done.errors)
        nodes = {node.id: node for node in (*plan.seen, *filter(self._billed(plan), done.seen))}
        record_unanswered_launches(self._context, self._rows(plan), tuple(nodes.values()))
        busy = (region for region, err in done.errors.items() if isinstance(err, ShuttingDownError))
        return done.ended, frozenset(busy)

    def _delete_by_journals(
        self, plan: DeletionPlan, shutting_down: frozenset[str], failures: RegionFailures
    ) -> frozenset[str]:
        """Delete what the journals list. Return the regions whose journal cannot be read.

        Unreachable regions come last, because deleting by journal retries every call.
        """
        unreadable = set()
        if plan.record is not None:
            regions = [region for region in plan.regions if region not in shutting_down]
            for region in sorted(regions, key=failures.__contains__):
                with failures.guard(region):
                    try:
                        delete_by_journal(self._context, plan.record, region)
                    except StateError as err:
                        self._context.emit(Note(f"{err.message}; searching by tag instead"))
                        unreadable.add(region)
        return frozenset(unreadable)

    def _delete_remaining(self, plan: DeletionPlan, failures: RegionFailures) -> tuple[str, ...]:
        """Delete the resources that a search still finds, region by region, and search again. Return what was deleted.

        Failed regions are skipped, because another search would only time out again. IAM comes last and only if no
        region has failed, because the expiry schedules in a failed region need their IAM role.
        """
        ended: list[str] = []
        for region in plan.regions:
            if region not in failures:
                with failures.guard(region):
                    ended += self._tags.empty_region(plan.name, region, self._to_delete(plan))
        if plan.in_iam and not failures:
            with failures.guard(GLOBAL):
                ended += self._empty_iam(plan)
        return tuple(ended)

    def _empty_iam(self, plan: DeletionPlan) -> list[str]:
        """Delete the IAM resources of the cluster. Return what was deleted.

        Those of another cluster with the same name stay if its region was not searched, because its nodes may be
        running, and need the role of their expiry schedules.
        """
        whose, elsewhere = self._to_delete(plan), dict[str, str]()

        def is_in_searched_region(resource: TaggedResource) -> bool:
            if not whose(resource):
                return False
            region = region_of(resource, plan.name)
            own = bool(plan.token) and resource.tags.get(TOKEN_TAG, "") == plan.token
            if own or plan.whose == "token" or region in plan.regions or (not region and plan.everywhere):
                return True
            elsewhere[f"{resource.kind} {resource.id}"] = region
            return False

        ended = self._tags.empty_region(plan.name, GLOBAL, is_in_searched_region)
        if elsewhere:
            places = " and ".join(dict.fromkeys(region or "an unknown region" for region in elsewhere.values()))
            message = f"{', '.join(elsewhere)} of another cluster {plan.name}, in {places}"
            if plan.record is None:
                left = [f"{resource} in IAM" for resource in elsewhere]
                hint = f"run `{command('cloudgpu', 'down', plan.name)}` again, which searches there too"
                raise TeardownError(f"found {message}, which was not searched", left=left, hint=hint)
            self._context.emit(Note(f"not deleted: {message}"))
        return ended

    def _settle(self, unreadable: frozenset[str]) -> None:
        """Wait until a tag search would list what the unreadable journals list."""
        if unreadable:
            self._context.clock.sleep(1.0 if is_simulated(self._context.cloud.target) else _SETTLE_S)

    def _bill_terminated_nodes(self, plan: DeletionPlan, failures: RegionFailures) -> None:
        """Bill the nodes whose launch response was lost and that have terminated without this deletion."""
        rows = self._rows(plan)
        unconfirmed = {row.spending.region for row in unconfirmed_launches(rows)}
        regions = [region for region in plan.regions if region in unconfirmed and region not in failures]
        if regions:
            result = self._tags.search(plan.name, regions, self._billed(plan))
            failures.add_all(result.failures)
            record_unanswered_launches(self._context, rows, [*result.found, *result.terminated])

    def _delete_storage(self, plan: DeletionPlan, searched: Sequence[str], failures: RegionFailures) -> StorageOutcome:
        """Delete the temporary storage of the cluster, by its record or by the tags in the `searched` regions."""
        storage, outcome = ClusterStorage(self._context), NO_STORAGE_OUTCOME
        if plan.with_storage and plan.record is not None:
            # It may be in a region other than that of the nodes, if this was the region of a failed attempt.
            for region in sorted({row.region for row in plan.record.placement.storage}):
                if region not in failures:
                    with failures.guard(region):
                        ended = storage.delete_marked(plan.record, region)
                        outcome = StorageOutcome(outcome.ended + ended.ended, outcome.kept + ended.kept)
        elif plan.with_storage and searched:
            with failures.guard(searched[0]):
                outcome = storage.delete_unrecorded(plan.name, searched)
        return outcome

    def _not_enabled(self, plan: DeletionPlan, failures: RegionFailures) -> dict[str, str]:
        """Return an explanation for each failed region that is not enabled in the account."""
        if not failures or plan.record is None:
            return {}
        try:
            enabled = (*self._context.cloud.regions(), GLOBAL)
        except CloudGpuError:
            return {}
        path = self._context.home.cluster(plan.name).record
        why = f"the region is not enabled in this account; enable it, or remove it from the record {path}"
        return {region: why for region in failures.regions if region not in enabled}


def delete_by_journal(context: CloudContext, record: ClusterRecord, region: str) -> None:
    """Delete the resources of a cluster that the engine recorded in one region.

    Raises:
        StateError: The engine's state cannot be read. A tag search still finds every resource.
    """
    try:
        engine = context.cloud.engine(record)
    except UsageError as err:
        raise StateError(err.message, hint=err.hint) from err  # without the Pulumi CLI, its state cannot be read
    if record.identity.engine == "pulumi":
        context.home.ensure()  # the Pulumi CLI writes its state before and after every call
    try:
        engine.destroy(stack_of(context.home, record, region), context.emit)
    except OSError as err:
        raise unwritable_error(context.home.root, err) from err
