"""Ledger rows of clusters and runs: find them by token, close them, and compute costs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from cloudgpu.backends.base import TaggedResource
from cloudgpu.backends.context import Context
from cloudgpu.errors import BusyError, StateError
from cloudgpu.ledger.billing import entry_usd
from cloudgpu.ledger.entry import LedgerEntry
from cloudgpu.state.cluster_and_run_records import ClusterRecord, RunRecord


@dataclass(frozen=True)
class ClusterBilling:
    """The ledger rows of clusters and runs.

    A team may share the ledger, and cluster names are reused, so rows are matched by token.
    """

    context: Context

    def rows(self, record: ClusterRecord) -> tuple[LedgerEntry, ...]:
        """Return all rows of a cluster."""
        return self.rows_of(record.name, record.token)

    def rows_of(self, name: str, token: str) -> tuple[LedgerEntry, ...]:
        """Return all rows of the cluster with this name and token; none without a token."""
        found = self.context.ledger.entries(cluster=name) if token else ()
        return tuple(entry for entry in found if entry.spending.entry_id.startswith(f"{token}/"))

    def rows_without_record(self, name: str) -> tuple[LedgerEntry, ...]:
        """Return the rows of clusters of this name that this owner launched in this account and endpoint.

        Raises:
            StateError: One of the rows is open in another account, where an empty search here proves nothing.
        """
        cloud = self.context.cloud
        own = [
            entry
            for entry in self.context.ledger.entries(cluster=name)
            if entry.spending.owner == self.context.owner and entry.spending.target == cloud.target
        ]
        if not own:
            return ()
        here = (cloud.account(), cloud.endpoint)
        for entry in own:
            what = entry.spending
            if entry.state == "open" and not what.simulated and (what.account, what.endpoint) != here:
                message = f"the ledger has a cluster {name} in account {what.account}, not in {here[0]}"
                raise StateError(message, hint="use the credentials that it was created with")
        return tuple(entry for entry in own if (entry.spending.account, entry.spending.endpoint) == here)

    def refuse_taken(self, record: ClusterRecord) -> None:
        """Reject a name that the ledger, which a team may share, lists as in use.

        Raises:
            BusyError: The name is in use; the message has its owner and expiry.
        """
        now = self.context.clock.now()
        for entry in self.context.ledger.entries(cluster=record.name, state="open"):
            what = entry.spending
            same_place = (what.account, what.endpoint) == (record.account, record.endpoint)
            if same_place and not what.entry_id.startswith(f"{record.token}/") and what.expires_at > now:
                raise taken(record.name, what.owner, f"{what.expires_at:%Y-%m-%d %H:%M} UTC")

    def note_launched(self, entries: Iterable[LedgerEntry], found: Sequence[TaggedResource]) -> None:
        """Write down instances whose launch was never answered, or their time would be free.

        They count from the moment their row was opened: the call came right after it.
        """
        rows = tuple(entries)
        by_region = {e.spending.region: e for e in rows if e.state == "open" and e.launched_at is None}
        # Of an earlier attempt in the same region AWS still lists what it ended: that is on another row.
        known = {instance_id for e in rows for instance_id in e.instance_ids}
        for region, entry in by_region.items():
            ids = [
                resource.id
                for resource in found
                if resource.kind == "instance" and resource.region == region and resource.id not in known
            ]
            if ids:
                self.context.ledger.launched(entry.spending.entry_id, ids, entry.spending.opened_at)

    def close(self, entries: Iterable[LedgerEntry], at: datetime) -> None:
        """Close those that are open: the cloud has confirmed the end."""
        for entry in entries:
            if entry.state == "open":
                self.context.ledger.close(entry.spending.entry_id, at)

    def settle(self, entries: Iterable[LedgerEntry], *, running: bool) -> Decimal:
        """Close the open ones of these rows of hosts; what they come to, USD. `running`: leases were given back now."""
        now = self.context.clock.now()
        usd = Decimal(0)
        for row in entries:
            if row.state == "open":
                # A host takes its GPUs back at the expiry by its own clock, and has confirmed that it did.
                at = now if running else min(now, row.spending.expires_at)
                self.close([row], at)
                launched = row.launched_at or (row.spending.opened_at if running else None)
                usd += self.usd([replace(row, state="closed", launched_at=launched, closed_at=at)], now)
        return usd

    def usd(self, entries: Iterable[LedgerEntry], at: datetime) -> Decimal:
        """Return the total cost of these rows, USD."""
        return sum((entry_usd(entry, at) for entry in entries), Decimal(0))

    def run_usd(self, record: RunRecord) -> Decimal:
        """Return the cost of a run, USD, as the ledger's own report computes it, so that all commands agree."""
        simulated = record.target == "rehearsal"
        bill = self.context.ledger.report(by="run", now=self.context.clock.now())
        rows = (row.usd for row in bill.rows if row.key == record.run_id and row.simulated is simulated)
        return next(rows, Decimal(0))


def taken(name: str, owner: str, until: str) -> BusyError:
    """Return the error for a cluster name that is already in use."""
    message = (
        f"there is a cluster {name} of {owner or 'nobody known'} already, until {until}, created from another home"
    )
    return BusyError(message, hint="choose another name with --name or --cluster")
