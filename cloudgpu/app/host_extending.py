"""`extend` on hosts of one's own: the ledger and the record first, then the lease on every host."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.app.books import Books
from cloudgpu.app.cluster_costs import worst_case_usd
from cloudgpu.app.desk import HostDesk
from cloudgpu.app.extending import Extended
from cloudgpu.app.host_nodes import own_directory
from cloudgpu.app.host_teardown import home_of
from cloudgpu.app.inventories import stored_inventory
from cloudgpu.app.records import ClusterRecord
from cloudgpu.app.standing import check_alive, standing_record
from cloudgpu.errors import BudgetError, UsageError
from cloudgpu.provision.lease import Lease
from cloudgpu.remote.base import Host
from cloudgpu.remote.fanout import all_or_raise, on_all
from cloudgpu.run.agent import ask_once


class HostExtending:
    """Renews leases. One object for one inventory and one home."""

    def __init__(self, desk: HostDesk) -> None:
        self._desk = desk

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> Extended:
        """Let the cluster live until a moment, or for so much longer than it was to live.

        Raises:
            UsageError: There is no such cluster that is up, or the moment is not later.
            BudgetError: The worst case would be more than the recipe's `budget.max_usd`.
            StateError: A lease has lapsed.
            ConnectError: A host cannot be reached; the others can have the new expiry.
            BusyError: Another process is at this cluster.
        """
        with Lease(self._desk.home.cluster(name).root / "lease", self._desk.clock, self._desk.owner).hold(tidy=True):
            record = standing_record(self._desk, name)
            check_alive(self._desk, record)
            record = record if max_usd is None else replace(record, max_usd=format(max_usd, "f"))
            before = record.confirmed_expires_at or record.expires_at
            wanted = (before + by if until is None and by is not None else until) or before
            later = _later(record, before, wanted.replace(microsecond=0))
            now = self._desk.clock.now()
            for row in Books(self._desk).rows(later):
                if row.state == "open":
                    self._desk.ledger.extend(row.spending.entry_id, later.expires_at, now)
            later = self._desk.records.save_cluster(later, now)
            self._renew(later)
            done = replace(later, confirmed_expires_at=None)
            return Extended(self._desk.records.save_cluster(done, self._desk.clock.now()), before, worst_case_usd(done))

    def _renew(self, record: ClusterRecord) -> None:
        def renew(host: Host) -> None:
            home = own_directory(host.node, home_of(host))
            until = int(record.expires_at.timestamp())
            request = {"action": "extend", "token": record.token, "home": home, "expires_epoch_s": until}
            ask_once(host, "lease", request)

        with self._desk.cloud.connected(stored_inventory(self._desk.home, record).nodes) as outcomes:
            all_or_raise(on_all(all_or_raise(outcomes).values(), renew))


def _later(record: ClusterRecord, before: datetime, until: datetime) -> ClusterRecord:
    """The record as it will be.

    Raises:
        UsageError: The moment is not later.
        BudgetError: It would cost more than the recipe allows.
    """
    if until <= before:
        message = f"cluster {record.name} lives until {before:%Y-%m-%d %H:%M} UTC already"
        raise UsageError(message, hint=f"`cloudgpu down {record.name}` ends it now")
    first = record.first_expires_at or before
    later = replace(record, expires_at=until, confirmed_expires_at=before, first_expires_at=first)
    worst = worst_case_usd(later)
    if record.max_usd and worst > Decimal(record.max_usd):
        message = f"until then the cluster costs up to {worst} USD, above budget.max_usd {record.max_usd} USD"
        raise BudgetError(message, hint=f"a shorter extension, or --max-usd {worst}")
    return later
