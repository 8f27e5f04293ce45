"""Delete nodes that Pulumi's state does not list because a call was interrupted before its response."""

from collections.abc import Collection, Mapping

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.ec2.tagged_types import Found
from cloudgpu.aws.ec2.tagging import CLUSTER, TOKEN
from cloudgpu.aws.resources.fleet import FLEET_TAG
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock


def delete_unrecorded_nodes(
    clients: Clients, tags: Mapping[str, str], known: Collection[str], clock: Clock
) -> tuple[str, ...]:
    """Delete the cluster's fleets and instances that do not belong to known fleets; return their ids.

    They must go before `pulumi destroy`: AWS does not delete a security group that is in use by nodes.

    Args:
        clients: AWS clients of the region.
        tags: The cluster's tags. Without its name and token, nothing is deleted.
        known: Ids of the fleets in Pulumi's state.
        clock: Clock used for waiting.

    Raises:
        CloudGpuError: The AWS API call fails, or a resource was not deleted.
    """
    cluster, token = tags.get(CLUSTER, ""), tags.get(TOKEN, "")
    if not (cluster and token):
        return ()
    tagged = tag_search.everything(clients, cluster, token)
    orphans = [row for row in tagged if _fleet(row) not in known and row.kind in ("fleet", "instance")]
    if orphans:
        tag_search.release(clients, orphans, clock)
    return tuple(orphan.id for orphan in orphans)


def _fleet(row: Found) -> str:
    return row.id if row.kind == "fleet" else row.tags.get(FLEET_TAG, "")
