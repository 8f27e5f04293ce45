"""Nodes that Pulumi's state does not know, because a call was cut off before its answer."""

from collections.abc import Collection, Mapping

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.ec2.tagged_types import Found
from cloudgpu.aws.ec2.tagging import CLUSTER, TOKEN
from cloudgpu.aws.resources.fleet import FLEET_TAG
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock


def end_stray_nodes(clients: Clients, tags: Mapping[str, str], known: Collection[str], clock: Clock) -> tuple[str, ...]:
    """End the cluster's fleets and instances that are not of these fleets; returns their ids.

    Left to the end of `pulumi destroy` they would be in its way: a security group with nodes in it cannot be deleted.

    Args:
        clients: One region.
        tags: The cluster's tags; without its name and token nothing is its own.
        known: Ids of the fleets in Pulumi's state that are to stay for now.
        clock: What is waited on.

    Raises:
        CloudGpuError: AWS cannot be asked, or something did not end.
    """
    cluster, token = tags.get(CLUSTER, ""), tags.get(TOKEN, "")
    if not (cluster and token):
        return ()
    found = tag_search.everything(clients, cluster, token)
    strays = [one for one in found if _fleet(one) not in known and one.kind in ("fleet", "instance")]
    if strays:
        tag_search.release(clients, strays, clock)
    return tuple(one.id for one in strays)


def _fleet(one: Found) -> str:
    return one.id if one.kind == "fleet" else one.tags.get(FLEET_TAG, "")
