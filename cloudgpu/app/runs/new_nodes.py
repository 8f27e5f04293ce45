"""Follow the bootstrap of a new cluster's nodes, and check their hardware, before the cluster is handed to the user."""

from cloudgpu.app.runs.follow import FollowedRun
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.base import Context
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.errors import CloudGpuError
from cloudgpu.text import command


def check_new_nodes(context: Context, provisioned: ProvisionedCluster, stages: Stages) -> None:
    """Connect to the nodes, wait until their bootstrap is done, and check their hardware.

    Nodes that an earlier command has found healthy and the user's own hosts are not checked. The cluster is kept if a
    node fails.

    Raises:
        ConnectError: A node is unreachable.
        RemoteCommandError: The bootstrap failed or took too long on a node, or the node lacks hardware.
    """
    unchecked = provisioned.made or provisioned.record.lifecycle.nodes_unchecked
    if not unchecked or provisioned.inventory.head.own:
        return
    try:
        with FollowedRun(context, stages) as nodes:
            nodes.connect(provisioned.inventory)
            nodes.gate()
    except CloudGpuError as err:
        record = provisioned.record
        kept = f"the cluster is kept until {record.lifecycle.expires_at:%Y-%m-%d %H:%M} UTC"
        err.hint = f"{err.hint or 'look at the nodes'}; {kept}: {command('cloudgpu', 'down', record.name)}"
        raise
