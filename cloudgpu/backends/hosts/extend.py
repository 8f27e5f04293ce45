"""Extend a cluster on self-managed hosts: update the ledger and the record, then the lease on every host."""

from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.hosts.agent_messages import ExtendedResponse
from cloudgpu.backends.hosts.billing import restore_rows
from cloudgpu.backends.hosts.context import HostsContext
from cloudgpu.backends.hosts.nodes import cluster_directory
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.backends.lifecycle.expiry_extension import (
    extended_record,
    record_confirmation,
    record_new_expiry,
    require_extendable,
    require_within_budget,
    resolve_expiry,
)
from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.run.agent import ask_once, find_login_home
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.inventories import stored_inventory


class HostExtending:
    """Extends clusters on self-managed hosts, for one inventory and one state home."""

    def __init__(self, context: HostsContext) -> None:
        self._context = context

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend a cluster's expiry to a given time or by a duration. `max_usd` replaces the cluster's budget."""
        with hold_lease(self._context, name):
            record = require_extendable(self._context, name, max_usd)
            restore_rows(self._context, record, stored_inventory(self._context.home, record).nodes)
            before, requested = resolve_expiry(record, until, by)
            later = extended_record(record, before, requested)
            require_within_budget(later)
            later = record_new_expiry(self._context, later)
            self._renew(later)
            return record_confirmation(self._context, later, before)

    def _renew(self, record: ClusterRecord) -> None:
        def renew(host: Host) -> None:
            home = cluster_directory(host.node, find_login_home(host))
            until = int(record.lifecycle.expires_at.timestamp())
            request = {"action": "extend", "token": record.identity.token, "home": home, "expires_epoch_s": until}
            ask_once(host, "lease", request, ExtendedResponse)

        with self._context.hosts.connected(stored_inventory(self._context.home, record).nodes) as outcomes:
            all_or_raise(run_on_all(all_or_raise(outcomes).values(), renew))
