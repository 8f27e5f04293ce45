"""The operations on clusters of AWS and of the rehearsal cloud."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from cloudgpu.backends.aws.account import AwsAccount, CloudContext
from cloudgpu.backends.aws.clusters.create import Provisioning, reuse_cluster
from cloudgpu.backends.aws.clusters.delete import Teardown
from cloudgpu.backends.aws.clusters.extend import ClusterExtender
from cloudgpu.backends.aws.clusters.launch_attempt import program_choices, record_with_candidate
from cloudgpu.backends.aws.clusters.ledger_rows import record_node_ends, restore_missing_rows
from cloudgpu.backends.aws.clusters.ssh_access import authorize_ssh
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.base import ClusterOperations
from cloudgpu.backends.billing.missing_rows import rows_of
from cloudgpu.backends.lifecycle.launch_request import Requester, new_record
from cloudgpu.backends.lifecycle.results import DeletionResult, ExtensionResult, ProvisionedCluster, ResourceForecast
from cloudgpu.clock import Clock
from cloudgpu.engine.base import PreviewStep
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_record import ClusterRecord

_PLACEHOLDER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA forecast"
"""Placeholder public key: a preview must not create a key pair."""
_PLACEHOLDER_CIDR = "127.0.0.1/32"
"""Placeholder for the caller's address, which a preview does not look up."""
_NO_JOURNAL = ".forecast"
"""Name of a journal that never exists, so that an existing cluster of the same name does not affect the preview."""
_COMPONENT = "cloudgpu:infra:"
_STACK = "pulumi:"


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
        """Create a cluster, or verify that the existing one matches the plan, as `reuse` does."""
        provisioning = Provisioning(self.context, requester)
        return provisioning.up(plan, name, run_id=run_id, keep_on_failure=keep_on_failure, retry_s=retry_s)

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Verify a running cluster, and allow the caller's address and the S3 locations of the plan's recipe."""
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


def forecast(
    plan: Plan, cluster: str, *, cloud: AwsAccount, requester: Requester, home: Home, clock: Clock
) -> tuple[ResourceForecast, ...]:
    """Preview the resources of a cluster on the plan's first candidate without changing anything.

    The public key of `requester` is not used.
    """
    if not plan.candidates:
        return ()
    record = record_with_candidate(
        new_record(cloud, plan, cluster, requester, "", clock.now()),
        plan,
        plan.candidates[0],
        program_choices(plan.recipe, cloud.program_settings),
        public_key=_PLACEHOLDER_KEY,
        ssh_cidr=_PLACEHOLDER_CIDR,
    )
    journal: Path = home.cluster(cluster).journal(record.placement.region).with_name(_NO_JOURNAL)
    stack = replace(stack_of(home, record), journal=journal)
    return tuple(_made(cloud.engine(record).preview(stack)))


def _made(steps: Iterable[PreviewStep]) -> Iterator[ResourceForecast]:
    """Yield the AWS resources that the program would create, without Pulumi components and the stack itself."""
    for step in steps:
        if step.operation == "create" and not step.type.startswith((_COMPONENT, _STACK)):
            yield ResourceForecast(step.type, step.name)
