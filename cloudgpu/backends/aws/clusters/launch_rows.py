"""Keep the ledger rows of launches complete: after a launch, after a lost response, or if rows were lost.

A ledger row is opened before each call. The row is closed at zero cost only if a search finds nothing once enough
time has passed for the resources of the call to appear.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.failures import RegionFailures
from cloudgpu.backends.aws.clusters.verified_deletion import ResourceFilter, TagSearch
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.backends.billing.missing_rows import has_failed, missing_nodes, reopen_row, rows_of
from cloudgpu.backends.tagged_resource import TaggedResource
from cloudgpu.engine.direct.deployment import delays_at, launch_visible_by
from cloudgpu.errors import CloudGpuError
from cloudgpu.ledger.entry import LedgerEntry, Spending
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord


def restore_missing_rows(context: CloudContext, record: ClusterRecord) -> None:
    """Restore the missing rows of a cluster's nodes from its record and the cloud's launch times.

    If the cloud no longer reports a node's launch time, the creation time of the cluster's record is used instead. The
    bill may then be too high, but not too low.
    """
    ledger = context.ledger
    nodes = missing_nodes(record, rows_of(ledger, record.name, record.identity.token))
    if not nodes or has_failed(ledger):
        return
    started = _start_times(context, record, nodes)
    row = spending_of(record, min(started.values()))
    if not reopen_row(ledger, row):
        return
    for node in nodes:
        ledger.launched(row.entry_id, [node], started[node])
    count = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    context.emit(Note(f"the ledger had no row for {count} of cluster {record.name}; the row has been restored"))


def record_launches(context: CloudContext, row: Spending, instance_ids: Sequence[str], otherwise: datetime) -> None:
    """Record launched instances with the cloud's launch times, by which they are billed.

    An instance that failed before it ran is not billed, and is left out. An instance that the cloud does not list is
    billed from the time `otherwise`.
    """
    known = _lifetimes(context, row.region, instance_ids)
    billed = [node for node in instance_ids if node not in known or not known[node].never_ran]

    def started_at(node: str) -> datetime:
        return (known[node].started_at if node in known else None) or otherwise

    for at, nodes in groupby(billed, started_at):
        context.ledger.launched(row.entry_id, tuple(nodes), at)


def record_unanswered_launches(
    context: CloudContext, entries: Iterable[LedgerEntry], found: Sequence[TaggedResource]
) -> None:
    """Record the instances among `found` whose launch response was lost, because they would otherwise not be billed.

    An instance whose launch time is unknown is billed from the time at which its row was opened, shortly before the
    launch call.
    """
    rows = tuple(entries)
    by_region = {e.spending.region: e.spending for e in rows if e.state == "open" and e.launched_at is None}
    # AWS still lists terminated instances of an earlier attempt in the same region, which belong to another row.
    known = {instance_id for e in rows for instance_id in e.instance_ids}
    for region, row in by_region.items():
        ids = [
            resource.id
            for resource in found
            if resource.kind == "instance" and resource.region == region and resource.id not in known
        ]
        if ids:
            record_launches(context, row, ids, row.opened_at)


def _start_times(context: CloudContext, record: ClusterRecord, nodes: Sequence[str]) -> dict[str, datetime]:
    known = _lifetimes(context, record.placement.region, nodes)
    times = {node: known[node].started_at if node in known else None for node in nodes}
    return {node: at or record.identity.created_at for node, at in times.items()}


def _lifetimes(context: CloudContext, region: str, nodes: Sequence[str]) -> Mapping[str, Lifetime]:
    try:
        return context.cloud.lifetimes(region, nodes)
    except CloudGpuError:
        return {}


@dataclass(frozen=True)
class UnansweredLaunches:
    """Handles a cluster's launches whose responses were not recorded."""

    context: CloudContext

    def wait(self, rows: Sequence[LedgerEntry], now: datetime) -> bool:
        """Wait until a tag search would find the nodes of the launches for which these rows were opened.

        Args:
            rows: Rows whose launch is not confirmed.
            now: Time at which the launching process is known to have exited.

        Returns:
            False if `rows` is empty, so that there was nothing to wait for.
        """
        if not rows:
            return False
        until = latest_visible_at(rows, now, self.context.cloud.endpoint)
        remaining_s = (until - self.context.clock.now()).total_seconds()
        if remaining_s > 0:
            self.context.emit(
                Note(f"waiting until {until:%H:%M:%S} UTC, because an interrupted launch may still appear")
            )
            self.context.clock.sleep(remaining_s)
        return True

    def record_terminated_nodes(
        self, name: str, rows: Sequence[LedgerEntry], whose: ResourceFilter, failures: RegionFailures
    ) -> None:
        """Record nodes whose launch response was lost, even if they have terminated, so that they are billed."""
        unconfirmed = {row.spending.region for row in unconfirmed_launches(rows)}
        regions = [region for region in failures.asked if region in unconfirmed and region not in failures]
        if regions:
            result = TagSearch(self.context).search(name, regions, whose)
            failures.add_all(result.failures)
            record_unanswered_launches(self.context, rows, [*result.found, *result.terminated])


def latest_visible_at(rows: Sequence[LedgerEntry], now: datetime, endpoint: str) -> datetime:
    """Return the time by which a tag search would find the nodes of every launch for these rows."""
    delays = delays_at(endpoint)
    return max(launch_visible_by(row.spending.opened_at, now, delays) for row in rows)


def unconfirmed_launches(rows: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the open rows for which it is unknown whether anything was launched."""
    return [row for row in rows if row.state == "open" and row.launched_at is None]
