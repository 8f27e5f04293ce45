"""Who makes clusters stand and who ends them: for what is bought of a cloud, and for hosts of one's own."""

from typing import Protocol

from cloudgpu.app.clusters.delete import Teardown
from cloudgpu.app.clusters.ssh_access import authorize_ssh
from cloudgpu.backends.context import CloudContext, Context
from cloudgpu.backends.deletion import Ended
from cloudgpu.backends.hosts.context import HostsContext
from cloudgpu.backends.launch_request import Requester
from cloudgpu.backends.reuse import ProvisionedCluster
from cloudgpu.plan.plan import Plan
from cloudgpu.state.records import ClusterRecord


class ClusterCreator(Protocol):
    """Makes clusters stand."""

    def up(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> ProvisionedCluster:
        """Make the cluster stand; one that stands already is checked and left as it is."""

    def reuse(self, name: str, plan: Plan) -> ProvisionedCluster:
        """A cluster as recorded, fit for the plan, its nodes confirmed alive."""


class ClusterDeleter(Protocol):
    """Ends clusters."""

    def down(self, name: str, default_region: str) -> Ended:
        """End a cluster, and say so only when that is confirmed."""


def cluster_creator(context: Context, requester: Requester) -> ClusterCreator:
    """Return the use case that creates clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.backends.hosts.create import HostProvisioning  # noqa: PLC0415 - the AWS path has no use for it

        return HostProvisioning(context, requester)
    from cloudgpu.app.clusters.create import Provisioning  # noqa: PLC0415

    return Provisioning(_require_cloud(context), requester)


def cluster_deleter(context: Context) -> ClusterDeleter:
    """Return the use case that deletes clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.backends.hosts.delete import HostTeardown  # noqa: PLC0415

        return HostTeardown(context)
    return Teardown(_require_cloud(context))


def authorize_caller(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Open the way to a standing cluster for this caller; whoever owns the hosts has opened theirs.

    Raises:
        BusyError: The caller has moved, and another process is at this cluster.
        CloudError: The cloud refused.
    """
    return record if isinstance(context, HostsContext) else authorize_ssh(_require_cloud(context), record)


def _require_cloud(context: Context) -> CloudContext:
    if not isinstance(context, CloudContext):
        message = f"{type(context).__name__} cannot launch instances"
        raise TypeError(message)
    return context
