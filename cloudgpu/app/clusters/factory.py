"""Select the use cases that create and delete clusters, for cloud instances and for self-managed hosts."""

from typing import Protocol

from cloudgpu.app.clusters.delete import Teardown
from cloudgpu.app.clusters.ssh_access import authorize_ssh
from cloudgpu.backends.context import CloudContext, Context
from cloudgpu.backends.deletion import DeletionResult
from cloudgpu.backends.hosts.context import HostsContext
from cloudgpu.backends.launch_request import Requester
from cloudgpu.backends.reuse import ProvisionedCluster
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_and_run_records import ClusterRecord


class ClusterCreator(Protocol):
    """Creates clusters."""

    def up(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> ProvisionedCluster:
        """Create a cluster. If it already exists, verify it and make no changes."""

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """Return a running cluster that matches the plan."""


class ClusterDeleter(Protocol):
    """Deletes clusters."""

    def down(self, name: str, default_region: str) -> DeletionResult:
        """Delete a cluster and verify that nothing is left."""


def cluster_creator(context: Context, requester: Requester) -> ClusterCreator:
    """Return the object that creates clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.backends.hosts.create import HostProvisioning  # noqa: PLC0415 - not needed for AWS

        return HostProvisioning(context, requester)
    from cloudgpu.app.clusters.create import Provisioning  # noqa: PLC0415

    return Provisioning(_require_cloud(context), requester)


def cluster_deleter(context: Context) -> ClusterDeleter:
    """Return the object that deletes clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.backends.hosts.delete import HostTeardown  # noqa: PLC0415

        return HostTeardown(context)
    return Teardown(_require_cloud(context))


def authorize_caller(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Authorize SSH from the caller's current address. Self-managed hosts need no change.

    Raises:
        BusyError: The caller's address has changed, and another process is working on this cluster.
        CloudError: AWS rejected the request.
    """
    return record if isinstance(context, HostsContext) else authorize_ssh(_require_cloud(context), record)


def _require_cloud(context: Context) -> CloudContext:
    if not isinstance(context, CloudContext):
        message = f"{type(context).__name__} cannot launch instances"
        raise TypeError(message)
    return context
