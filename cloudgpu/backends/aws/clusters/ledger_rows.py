"""The ledger rows of a cluster: complete them after a launch or a lost response, and close them after the deletion.

A ledger row is opened before each call. The row is closed at zero cost only if a search finds nothing once enough
time has passed for the resources of the call to appear.

The time at which a resource was terminated is unknown if a node shut itself down, if another program released an
Elastic IP, or if AWS no longer lists the resource. The estimate is then the time at which the termination was
confirmed, which is an upper bound. An estimate that is too high can be corrected from the AWS bill; an estimate that is
too low would go unnoticed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from cloudgpu.aws.ec2.billing_times import Lifetime
from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.billing.cluster_billing import missing_nodes, rows_of
from cloudgpu.backends.billing.cost_ledger import has_failed, reopen_row
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.cloud import TaggedResource
from cloudgpu.engine.direct.deployment import delays_at, launch_visible_by
from cloudgpu.errors import CloudGpuError
from cloudgpu.ledger.entry import LedgerEntry, Part, PartEnd, Spending
from cloudgpu.run.progress import Note
from cloudgpu.state.cluster_record import ClusterRecord

_LISTED_AFTER = timedelta(minutes=15)
_KINDS: Mapping[Part, str] = {"gateway": "nat-gateway", "elastic-ips": "elastic-ip"}


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


def wait_for_launches(context: CloudContext, rows: Sequence[LedgerEntry], now: datetime) -> bool:
    """Wait until a tag search would find the nodes of the launches for which these rows were opened.

    Args:
        context: The context of the command.
        rows: Rows whose launch is not confirmed.
        now: Time at which the launching process is known to have exited.

    Returns:
        False if `rows` is empty, so that there was nothing to wait for.
    """
    if not rows:
        return False
    delays = delays_at(context.cloud.endpoint)
    until = max(launch_visible_by(row.spending.opened_at, now, delays) for row in rows)
    remaining_s = (until - context.clock.now()).total_seconds()
    if remaining_s > 0:
        context.emit(Note(f"waiting until {until:%H:%M:%S} UTC, because an interrupted launch may still appear"))
        context.clock.sleep(remaining_s)
    return True


def unconfirmed_launches(rows: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Return the open rows for which it is unknown whether anything was launched."""
    return [row for row in rows if row.state == "open" and row.launched_at is None]


@dataclass(frozen=True)
class LedgerCloser:
    """Closes the ledger rows of a cluster after its deletion has been confirmed.

    Attributes:
        alive: (entry ID, part) pairs for the parts that still existed when the teardown started.
    """

    context: CloudContext
    alive: frozenset[tuple[str, Part]]

    @classmethod
    def started(cls, context: CloudContext, entries: Iterable[LedgerEntry]) -> "LedgerCloser":
        """Return a closer that knows which NAT gateways and Elastic IPs exist. Call this before they are deleted."""
        alive: set[tuple[str, Part]] = set()
        for entry in entries:
            if entry.state == "open" and entry.outlasting_parts:
                existing = {resource.kind for resource in _network(context, entry) if resource.alive}
                alive |= {
                    (entry.spending.entry_id, part) for part in entry.outlasting_parts if _KINDS[part] in existing
                }
        return cls(context, frozenset(alive))

    def close(self, entries: Iterable[LedgerEntry]) -> None:
        """Close the open entries. Call this after a search has confirmed that none of their resources remain."""
        still_open = [entry for entry in entries if entry.state == "open"]
        for entry in still_open:
            self._close(entry, self.context.cloud.time.now())
        if still_open:
            report_clock_difference(self.context)

    def _close(self, entry: LedgerEntry, now: datetime) -> None:
        ledger, entry_id = self.context.ledger, entry.spending.entry_id
        if entry.launched_at is None:
            ledger.close(entry_id, now)
            return
        ends = {
            "nodes": entry.parts.get("nodes") or last_termination(self.context, entry, now),
            **self._network_ends(entry, now),
        }
        last = max(end.at for end in ends.values())
        for part, end in ends.items():
            if end.estimated or end.at != last:
                ledger.part_ended(entry_id, part, end.at, estimated=end.estimated)
        ledger.close(entry_id, last)

    def _network_ends(self, entry: LedgerEntry, now: datetime) -> dict[Part, PartEnd]:
        if not entry.outlasting_parts:
            return {}
        lifetimes = _network(self.context, entry)
        return {part: self._network_end(entry, part, lifetimes, now) for part in entry.outlasting_parts}

    def _network_end(self, entry: LedgerEntry, part: Part, lifetimes: Iterable[Lifetime], now: datetime) -> PartEnd:
        ends = [resource.ended_at for resource in lifetimes if resource.kind == _KINDS[part]]
        known = [at for at in ends if at is not None]
        if known and len(known) == len(ends):
            return PartEnd(entry.within_lifetime(max(known), now))
        return PartEnd(now, estimated=(entry.spending.entry_id, part) not in self.alive)


def record_node_ends(context: CloudContext, entries: Iterable[LedgerEntry]) -> None:
    """Record the termination time for each entry whose nodes have all terminated, although the cluster still exists.

    AWS reports the termination time for about an hour. After that, the time of this check is recorded as an estimate,
    which is closer to the actual time than the time at which the cluster is deleted.
    """
    now = context.cloud.time.now()
    for entry in entries:
        if entry.state == "open" and entry.instance_ids and "nodes" not in entry.parts and _ended(context, entry, now):
            end = last_termination(context, entry, now)
            context.ledger.part_ended(entry.spending.entry_id, "nodes", end.at, estimated=end.estimated)


def close_failed_launch(context: CloudContext, entries: Iterable[LedgerEntry]) -> None:
    """Close the open entries after a launch whose instances have been terminated.

    The cost is an upper bound, because AWS does not report whether an instance ran before it was terminated.
    """
    now = context.cloud.time.now()
    for entry in entries:
        if entry.state == "open":
            if entry.launched_at is not None:
                end = last_termination(context, entry, now)
                context.ledger.part_ended(entry.spending.entry_id, "nodes", end.at, estimated=True)
            context.ledger.close(entry.spending.entry_id, now)


def report_clock_difference(context: CloudContext) -> None:
    """Report if this machine's clock differs from the cloud's, by which costs are counted."""
    if text := context.cloud.time.difference_to_report():
        context.emit(Note(text))


def _ended(context: CloudContext, entry: LedgerEntry, now: datetime) -> bool:
    """Return True if all nodes of an entry have terminated.

    A recently launched node counts as running even if AWS does not list it yet.
    """
    known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    young = now - (entry.launched_at or now) < _LISTED_AFTER
    return all(not known[node].alive if node in known else not young for node in entry.instance_ids)


def last_termination(context: CloudContext, entry: LedgerEntry, now: datetime) -> PartEnd:
    """Return when the last node of an entry terminated; `now`, as an estimate, if AWS does not report every time.

    The caller must have confirmed that all nodes are terminated.
    """
    try:
        known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    except CloudGpuError:
        known = {}
    ends = [known[node].ended_at if node in known else None for node in entry.instance_ids]
    reported = [at for at in ends if at is not None]
    if not reported or len(reported) < len(ends):
        return PartEnd(now, estimated=True)
    return PartEnd(entry.within_lifetime(max(reported), now))


def _network(context: CloudContext, entry: LedgerEntry) -> tuple[Lifetime, ...]:
    try:
        return tuple(context.cloud.network_lifetimes(entry.spending.region, entry.spending.entry_id.partition("/")[0]))
    except CloudGpuError:
        return ()
