"""`down` and the cleanup after a failed launch: plan the deletion of a cluster, carry it out, update the records."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloudgpu.aws.ec2.tagging import SearchResult
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import restore_missing_rows
from cloudgpu.backends.aws.clusters.tag_search import only, region_of, resource_filter
from cloudgpu.backends.aws.clusters.verified_deletion import DeletedResources, DeletionPlan, VerifiedDeletion
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.billing.cluster_billing import ClusterBilling, of_existing_clusters
from cloudgpu.backends.billing.cost_ledger import failure_of, lenient
from cloudgpu.backends.lifecycle.deletion import (
    cancel_unfinished_runs,
    check_identity,
    check_recorded,
    remove_local_record,
)
from cloudgpu.backends.lifecycle.existing_cluster import hold_lease_to_delete
from cloudgpu.backends.lifecycle.results import DeletionResult
from cloudgpu.cloud import GLOBAL, OWNER_TAG, TaggedResource
from cloudgpu.engine.direct.journal import JournalAccount, account_of
from cloudgpu.errors import CloudGpuError, LedgerError, StateError, TeardownError, UsageError
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.targets import is_simulated
from cloudgpu.text import command


class Teardown:
    """Deletes clusters in one cloud and updates their records in one state home."""

    def __init__(self, context: CloudContext) -> None:
        # No node may keep running because the ledger is unusable: its failure is reported after the deletion.
        context = self._context = replace(context, ledger=lenient(context.ledger))
        self._billing = ClusterBilling(context)
        self._deletion = VerifiedDeletion(context)

    def down(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster, whether recorded or found only by a tag search. Succeed if there is nothing to delete."""
        ended = self.delete_unchecked(name, default_region)
        self._check_recorded(ended)
        return ended

    def delete_unchecked(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster like `down`, but let the caller check whether the deletion could be recorded."""
        with hold_lease_to_delete(self._context, require_cluster_name(name)):
            record = self._recorded(name)
            return (
                self._end_unrecorded(name, default_region) if record is None else self._end(record, after_launch=False)
            )

    def end(self, record: ClusterRecord) -> DeletionResult:
        """Delete what a failed launch of this command created. The caller must hold the cluster's lease.

        Delete only resources tagged with the cluster's token, and do not cancel the cluster's runs.
        """
        ended = self._end(record, after_launch=True)
        self._check_recorded(ended)
        return ended

    def _check_recorded(self, ended: DeletionResult) -> None:
        check_recorded(self._context, ended, f"cluster {ended.cluster} is deleted, verified by tag search")

    def _end(self, record: ClusterRecord, *, after_launch: bool) -> DeletionResult:
        """Delete a recorded cluster."""
        record = self._context.records.cluster(record.name) or record
        check_identity(record, self._context.cloud)
        restore_missing_rows(self._context, record)
        plan = self._recorded_plan(record, after_launch=after_launch)
        self._mark_ending(record)
        deleted = self._deletion.carry_out(plan)
        return self._result(record.name, record, deleted, self._billing.rows(record), runs_too=not after_launch)

    def _end_unrecorded(self, name: str, default_region: str) -> DeletionResult:
        """Delete resources tagged with the name in the default region and in every region that the plan adds."""
        plan = self._unrecorded_plan(name, default_region)
        unread = failure_of(self._context.ledger)
        deleted = self._deletion.carry_out(plan)
        if unread is not None and not plan.everywhere:
            raise _unknown_regions(plan, unread)
        self._require_own_journals(name)
        ended = self._result(name, None, deleted, deleted.closed, runs_too=True)
        target, others = self._context.cloud.target, self._billing.other_targets(name)
        return replace(ended, target=target, searched=plan.regions, other_targets=others)

    def _recorded_plan(self, record: ClusterRecord, *, after_launch: bool) -> DeletionPlan:
        """Return the plan for a recorded cluster.

        `down` also deletes resources with the cluster's name that belong to the current owner or have no owner, and an
        earlier command may have been killed during a launch. Neither applies after a failed launch of this command.
        """
        rows = self._billing.rows(record)
        regions = _distinct([*record.placement.regions, *self._regions_of(record.name, rows)])
        return DeletionPlan(
            record.name,
            regions,
            "token" if after_launch else "token or owner",
            record.identity.token,
            record,
            answered=frozenset(region for region in regions if after_launch or self._has_journal(record, region)),
            in_iam=bool(regions),
        )

    def _unrecorded_plan(self, name: str, default_region: str) -> DeletionPlan:
        """Return the plan for a cluster without a readable record, after a search for its tag.

        Everything with the name that belongs to the current owner or has no owner may be deleted. Without a record, no
        journal says which launches got a response.
        """
        rows = of_existing_clusters(self._billing.rows_without_record(name))
        regions = _distinct([default_region, *self._regions_of(name, rows)])
        result = self._context.cloud.search_each(name, (*regions, GLOBAL))
        owned = only(resource_filter("owner", "", self._context.owner), result)
        if result.found and not owned.found and not result.failures:
            raise _not_yours(name, result.found[0])
        return self._widened(DeletionPlan(name, regions, "owner", found=owned))

    def _widened(self, plan: DeletionPlan) -> DeletionPlan:
        """Add the regions of the IAM resources that were found, because the cluster's nodes may be running there.

        If the name of an IAM resource contains no region, add every enabled region.
        """
        found = plan.found or SearchResult()
        named = [region_of(resource, plan.name) for resource in found.found if resource.region == GLOBAL]
        everywhere = "" in named
        try:
            enabled = self._context.cloud.regions() if everywhere else ()
        except CloudGpuError as err:
            return replace(plan, found=found.merged(SearchResult(failures={GLOBAL: err})))
        regions = _distinct([*plan.regions, *named, *enabled])
        more = regions[len(plan.regions) :]
        if more:
            self._context.emit(Note(f"found by tag in IAM; also searching {', '.join(more)}"))
            result = self._context.cloud.search_each(plan.name, more)
            found = found.merged(only(resource_filter("owner", "", self._context.owner), result))
        return replace(plan, regions=regions, everywhere=everywhere, found=found)

    def _result(
        self,
        name: str,
        record: ClusterRecord | None,
        deleted: DeletedResources,
        rows: Sequence[LedgerEntry],
        *,
        runs_too: bool,
    ) -> DeletionResult:
        """Cancel the runs of a deleted cluster, remove its record, and return the result with the cost of `rows`."""
        unsaved = cancel_unfinished_runs(self._context, name) if runs_too else ()
        return DeletionResult(
            cluster=name,
            known=record is not None,
            unsaved=(*unsaved, *remove_local_record(self._context, name)),
            instances=record.placement.instance_ids if record else (),
            orphans=deleted.orphans,
            usd=self._billing.usd(rows, self._context.clock.now()),
            estimated=any(part.estimated for row in rows for part in row.parts.values()),
            simulated=record.simulated if record else is_simulated(self._context.cloud.target),
            run_id=record.identity.run_id if record else "",
            storage=deleted.storage,
        )

    def _recorded(self, name: str) -> ClusterRecord | None:
        """Return the cluster's record. If it is missing or unreadable, return None: the caller then searches by tag."""
        try:
            return self._context.records.cluster(name)
        except StateError as err:
            self._context.emit(Note(f"{err.message}; searching for the cluster by tag instead"))
            return None

    def _regions_of(self, name: str, rows: Sequence[LedgerEntry]) -> list[str]:
        """Return the regions that this state home's ledger and journals list for a cluster."""
        return [*(row.spending.region for row in rows), *(path.stem for path in self._journals(name))]

    def _journals(self, name: str) -> list[Path]:
        root = self._context.home.cluster(name).root
        return sorted(root.glob("*.journal")) if root.is_dir() else []

    def _require_own_journals(self, name: str) -> None:
        """Raise an error if a journal lists resources of another account or cloud, which was not searched.

        Without a readable record, the cloud that is searched is the one in the settings.
        """
        cloud = self._context.cloud
        here = JournalAccount(cloud.account(), cloud.endpoint)
        found = [(path, account) for path in self._journals(name) if (account := account_of(path)) is not None]
        elsewhere = [(path, account) for path, account in found if account != here]
        if elsewhere:
            targets = {"rehearsal" if account.endpoint else "aws" for _, account in elsewhere}
            left = [f"resources of account {account.account} in {path}" for path, account in elsewhere]
            again = " or ".join(command("cloudgpu", "down", name, "--on", target) for target in sorted(targets))
            hint = f"use the credentials of that account: {again}; if it no longer exists, delete the file"
            message = f"cluster {name} is confirmed deleted only in account {here.account}, but has resources elsewhere"
            raise TeardownError(message, left=left, hint=hint)

    def _mark_ending(self, record: ClusterRecord) -> None:
        """Record that the cluster is being deleted. A full disk must not prevent the deletion."""
        try:
            self._context.records.save_cluster(record.in_state("ending"), self._context.clock.now())
        except StateError as err:
            self._context.emit(Note(f"{err.message}; continuing anyway"))

    def _has_journal(self, record: ClusterRecord, region: str) -> bool:
        """Return True if the direct engine has a journal. The engine then waits for launches that got no response."""
        return record.identity.engine == "direct" and stack_of(self._context.home, record, region).journal.exists()


def _distinct(regions: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(region for region in regions if region))


def _unknown_regions(plan: DeletionPlan, unread: LedgerError) -> TeardownError:
    """Return the error for a deletion without record and ledger, which alone may know further regions."""
    message = f"cluster {plan.name} is confirmed deleted only in {', '.join(plan.regions)}"
    left = f"other regions are unknown, because there is no record of the cluster, and {unread.message}"
    again = f"search every region: `cloudgpu sweep`; then run `{command('cloudgpu', 'down', plan.name)}` again"
    return TeardownError(message, left=[left], hint=f"{unread.hint}; or {again}" if unread.hint else again)


def _not_yours(name: str, resource: TaggedResource) -> UsageError:
    owner = resource.tags.get(OWNER_TAG, "")
    message = f"cluster {name} in {resource.region} belongs to {owner}; nothing was deleted"
    return UsageError(message, hint=command("cloudgpu", "down", name, CLOUDGPU_OWNER=owner))
