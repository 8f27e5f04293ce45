"""The operations on clusters of AWS and of the rehearsal cloud."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.backends.aws.clusters.create import Provisioning, reuse_cluster
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.extend import ClusterExtender
from cloudgpu.backends.aws.clusters.launch_rows import restore_missing_rows
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh
from cloudgpu.backends.aws.clusters.verified_deletion import record_node_ends
from cloudgpu.backends.aws.ports import CloudContext
from cloudgpu.backends.base import ClusterOperations
from cloudgpu.backends.billing.missing_rows import rows_of
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_record import ClusterRecord


@dataclass(frozen=True)
class CloudClusters(ClusterOperations):
    """Creates, verifies, extends and deletes clusters in one cloud account."""

    context: CloudContext

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
        """Create a cluster. If it already exists, verify that it matches the plan and make no changes."""
        provisioning = Provisioning(self.context, requester)
        return provisioning.up(plan, name, run_id=run_id, keep_on_failure=keep_on_failure, retry_s=retry_s)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Verify that a running cluster matches the plan, open port 22 to the caller, and return the cluster."""
        return reuse_cluster(self.context, name, plan)

    def delete(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster and verify by a tag search that nothing is left."""
        return Teardown(self.context).down(name, default_region)

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> ExtensionResult:
        """Extend a cluster's expiry on every node, to a time or by a duration.

        `max_usd` replaces the cluster's budget.
        """
        return ClusterExtender(self.context, self.context.backend.connect).extend(
            name, until=until, by=by, max_usd=max_usd
        )

    def authorize(self, record: ClusterRecord) -> ClusterRecord:
        """Open port 22 of a running cluster to the caller's current address."""
        return authorize_ssh(self.context, record)

    def record_costs(self, record: ClusterRecord) -> None:
        """Restore missing ledger rows, and record the termination times of terminated nodes."""
        if record.placement.instance_ids:
            restore_missing_rows(self.context, record)
            record_node_ends(self.context, rows_of(self.context.ledger, record.name, record.identity.token))
