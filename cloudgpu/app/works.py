"""Who makes clusters stand and who ends them: for what is bought of a cloud, and for hosts of one's own."""

from typing import Protocol

from cloudgpu.app.admission import let_in
from cloudgpu.app.context import CloudContext, Context, HostsContext
from cloudgpu.app.purchase import Buyer
from cloudgpu.app.records import ClusterRecord
from cloudgpu.app.standing import Standing
from cloudgpu.app.teardown import Ended, Teardown
from cloudgpu.plan.plan import Plan


class Provisions(Protocol):
    """Makes clusters stand."""

    def up(
        self, plan: Plan, name: str, *, run_id: str = "", keep_on_failure: bool = False, retry_s: int = 0
    ) -> Standing:
        """Make the cluster stand; one that stands already is checked and left as it is."""

    def standing(self, name: str, plan: Plan) -> Standing:
        """A cluster as recorded, fit for the plan, its nodes confirmed alive."""


class Ends(Protocol):
    """Ends clusters."""

    def down(self, name: str, default_region: str) -> Ended:
        """End a cluster, and say so only when that is confirmed."""


def provisions(context: Context, buyer: Buyer) -> Provisions:
    """Return the use case that creates clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.app.host_provisioning import HostProvisioning  # noqa: PLC0415 - the AWS path has no use for it

        return HostProvisioning(context, buyer)
    from cloudgpu.app.provisioning import Provisioning  # noqa: PLC0415

    return Provisioning(_bought(context), buyer)


def ends(context: Context) -> Ends:
    """Return the use case that deletes clusters in this context."""
    if isinstance(context, HostsContext):
        from cloudgpu.app.host_teardown import HostTeardown  # noqa: PLC0415

        return HostTeardown(context)
    return Teardown(_bought(context))


def admit(context: Context, record: ClusterRecord) -> ClusterRecord:
    """Open the way to a standing cluster for this caller; whoever owns the hosts has opened theirs.

    Raises:
        BusyError: The caller has moved, and another process is at this cluster.
        CloudError: The cloud refused.
    """
    return record if isinstance(context, HostsContext) else let_in(_bought(context), record)


def _bought(context: Context) -> CloudContext:
    if not isinstance(context, CloudContext):
        message = f"{type(context).__name__} cannot launch instances"
        raise TypeError(message)
    return context
