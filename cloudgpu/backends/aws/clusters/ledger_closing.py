"""Close ledger rows at the termination time that AWS reports, or at an estimated time if AWS reports none.

The time is unknown if a node shut itself down, if another program released an Elastic IP, or if AWS no longer lists the
resource. The estimate is then the time at which the termination was confirmed, which is an upper bound. An estimate
that is too high can be corrected from the AWS bill; an estimate that is too low would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cloudgpu.backends.aws.context import CloudContext
from cloudgpu.errors import CloudGpuError
from cloudgpu.ledger.entry import LedgerEntry, Part, PartEnd
from cloudgpu.run.progress import Note

if TYPE_CHECKING:
    # Only for annotations: commands that only read records must not import boto3.
    from cloudgpu.aws.ec2.billing_times import Lifetime

_LISTED_AFTER = timedelta(minutes=15)
_KINDS: Mapping[Part, str] = {"gateway": "nat-gateway", "elastic-ips": "elastic-ip"}


@dataclass(frozen=True)
class LedgerCloser:
    """Closes the ledger rows of a cluster after its deletion has been confirmed.

    Attributes:
        alive: (entry ID, part) pairs for the parts that still existed when the teardown started.
    """

    context: CloudContext
    alive: frozenset[tuple[str, Part]]

    @classmethod
    def started(cls, context: CloudContext, entries: Iterable[LedgerEntry]) -> LedgerCloser:
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
