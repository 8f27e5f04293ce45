"""The operations on clusters of self-managed hosts, such as extending their expiry."""

from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.base import ClusterOperations, Context
from cloudgpu.backends.hosts.backend import HostsBackend, HostsContext
from cloudgpu.backends.hosts.billing import restore_rows
from cloudgpu.backends.hosts.create import HostProvisioning, reuse_cluster
from cloudgpu.backends.hosts.delete import HostTeardown
from cloudgpu.backends.hosts.nodes import ExtendedResponse, cluster_directory
from cloudgpu.backends.lifecycle.cluster_lease import hold_lease
from cloudgpu.backends.lifecycle.expiry_extension import (
    extended_record,
    record_confirmation,
    record_new_expiry,
    require_extendable,
    require_within_budget,
    resolve_expiry,
)
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster
from cloudgpu.plan.plan import Plan
from cloudgpu.run.agent import ask_once, find_login_home
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.nodes import stored_inventory


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


@dataclass(frozen=True)
class HostClusters(ClusterOperations):
    """Creates, verifies, extends and deletes clusters on the hosts of one inventory."""

    context: HostsContext

    def create(
        self,
        plan: Plan,
        name: str,
        requester: Requester,
        *,
        run_id: str = "",
        keep_on_failure: bool = False,
        retry_s: int = 0,
    ) -> ProvisionedCluster:
        """Lease the hosts. If the cluster already exists, verify that it matches the plan and make no changes."""
        provisioning = HostProvisioning(self.context, requester)
        return provisioning.up(plan, name, run_id=run_id, keep_on_failure=keep_on_failure, retry_s=retry_s)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Return a running cluster after verifying its leases."""
        return reuse_cluster(self.context, name, plan)

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Release the hosts of a cluster and verify that nothing is left on them."""
        return HostTeardown(self.context).down(name, default_region)

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend the leases on every host to a given time or by a duration. `max_usd` replaces the cluster's budget."""
        return HostExtending(self.context).extend(name, until=until, by=by, max_usd=max_usd)

    def record_costs(self, record: ClusterRecord) -> None:
        """Do nothing, because `up`, `extend` and `down` open, restore and close the rows of hosts."""


def host_clusters(context: Context, hosts: HostsBackend) -> HostClusters:
    """Return the operations on clusters, which use the records and the ledger of `context`."""
    shared = {field.name: getattr(context, field.name) for field in fields(Context)}
    return HostClusters(HostsContext(**shared, hosts=hosts))
