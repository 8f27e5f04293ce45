"""Close ledger rows at the time the cloud reports, and mark the ends for which it gives none as estimated.

The moment at which an end was confirmed is the latest that it can have been. It is later than the true end where nodes
were shut down from within, where an Elastic IP was released elsewhere, and where AWS has forgotten: a bill that is too
high is corrected by looking at AWS's own, one that is too low is not noticed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cloudgpu.backends.context import CloudContext
from cloudgpu.errors import CloudGpuError
from cloudgpu.ledger.entry import Entry, Part, PartEnd

if TYPE_CHECKING:
    # Only a type: a command that reads records must not pay for boto3.
    from cloudgpu.aws.ec2.billing_times import Lifetime

_LISTED_AFTER = timedelta(minutes=15)
_KINDS: Mapping[Part, str] = {"gateway": "nat-gateway", "elastic-ips": "elastic-ip"}


@dataclass(frozen=True)
class Closing:
    """Closes the rows of one cluster after its end was confirmed.

    Attributes:
        alive: Ids of the parts that cost money when the teardown began, so that it was the teardown that ended them.
    """

    context: CloudContext
    alive: frozenset[tuple[str, Part]]

    @classmethod
    def begun(cls, context: CloudContext, entries: Iterable[Entry]) -> Closing:
        """Look at what the open rows still pay for, before it is deleted."""
        alive: set[tuple[str, Part]] = set()
        for entry in entries:
            if entry.state == "open" and entry.outlasting:
                living = {one.kind for one in _network(context, entry) if one.alive}
                alive |= {(entry.spending.entry_id, part) for part in entry.outlasting if _KINDS[part] in living}
        return cls(context, frozenset(alive))

    def close(self, entries: Iterable[Entry]) -> None:
        """Close those that are open. The cloud has confirmed that nothing of them is left.

        Raises:
            LedgerError: The ledger cannot be written.
        """
        for entry in entries:
            if entry.state == "open":
                self._close(entry, self.context.clock.now())

    def _close(self, entry: Entry, now: datetime) -> None:
        ledger, entry_id = self.context.ledger, entry.spending.entry_id
        if entry.launched_at is None:
            ledger.close(entry_id, now)
            return
        ends = {
            "nodes": entry.parts.get("nodes") or node_end(self.context, entry, now),
            **self._network_ends(entry, now),
        }
        last = max(end.at for end in ends.values())
        for part, end in ends.items():
            if end.estimated or end.at != last:
                ledger.part_ended(entry_id, part, end.at, estimated=end.estimated)
        ledger.close(entry_id, last)

    def _network_ends(self, entry: Entry, now: datetime) -> dict[Part, PartEnd]:
        if not entry.outlasting:
            return {}
        found = _network(self.context, entry)
        return {part: self._network_end(entry, part, found, now) for part in entry.outlasting}

    def _network_end(self, entry: Entry, part: Part, found: Iterable[Lifetime], now: datetime) -> PartEnd:
        ends = [one.ended_at for one in found if one.kind == _KINDS[part]]
        known = [at for at in ends if at is not None]
        if known and len(known) == len(ends):
            return PartEnd(_within(entry, max(known), now))
        return PartEnd(now, estimated=(entry.spending.entry_id, part) not in self.alive)


def note_ends(context: CloudContext, entries: Iterable[Entry]) -> None:
    """Record the end of nodes that are gone before anybody deletes their cluster.

    AWS names the time for about an hour, and later the moment of this look is a closer bound than that of the deletion.
    """
    now = context.clock.now()
    for entry in entries:
        if entry.state == "open" and entry.instance_ids and "nodes" not in entry.parts and _ended(context, entry, now):
            end = node_end(context, entry, now)
            context.ledger.part_ended(entry.spending.entry_id, "nodes", end.at, estimated=end.estimated)


def _ended(context: CloudContext, entry: Entry, now: datetime) -> bool:
    """Return True if no node of an entry is left. One that was launched moments ago may not be listed yet."""
    known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    young = now - (entry.launched_at or now) < _LISTED_AFTER
    return all(not known[one].alive if one in known else not young for one in entry.instance_ids)


def node_end(context: CloudContext, entry: Entry, now: datetime) -> PartEnd:
    """Return when the last node of an entry ended. All of them are confirmed gone."""
    try:
        known = context.cloud.lifetimes(entry.spending.region, entry.instance_ids)
    except CloudGpuError:
        known = {}
    ends = [known[one].ended_at if one in known else None for one in entry.instance_ids]
    reported = [at for at in ends if at is not None]
    if not reported or len(reported) < len(ends):
        return PartEnd(now, estimated=True)
    return PartEnd(_within(entry, max(reported), now))


def _within(entry: Entry, at: datetime, now: datetime) -> datetime:
    """AWS rounds down to the second and has a clock of its own: no row ends before it began, or in the future."""
    return max(entry.launched_at or entry.spending.opened_at, min(at, now))


def _network(context: CloudContext, entry: Entry) -> tuple[Lifetime, ...]:
    try:
        return tuple(context.cloud.network_lifetimes(entry.spending.region, entry.spending.entry_id.partition("/")[0]))
    except CloudGpuError:
        return ()
