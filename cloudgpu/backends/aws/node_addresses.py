"""Determine how the nodes of a cluster are reached, from its recorded program settings. Pure."""

import re
from collections.abc import Sequence, Set

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.errors import StateError
from cloudgpu.state.cluster_and_run_records import ClusterRecord

HEAD = 0
"""Index of the node that alone has an Elastic IP where the others stand behind it."""
_SSH_PORT = 22
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+")


def way(record: ClusterRecord) -> str:
    """Return how the cluster's program exposes its nodes."""
    return record.config.get("publicAddress") or "auto"


def private(record: ClusterRecord, gang: Sequence[str]) -> Set[str]:
    """Return the nodes without a public address: all of them, or all but the first."""
    behind = {"private": gang, "nat": gang[HEAD + 1 :]}
    return frozenset(behind.get(way(record), ()))


def by_ssm(record: ClusterRecord) -> bool:
    """Return True if SSH to the nodes goes through Session Manager."""
    return record.config.get("reach") == "ssm"


def by_session(found: Sequence[Instance]) -> dict[str, tuple[str, int]]:
    """Return the address of each node for Session Manager, which is its instance ID."""
    return {instance.id: (instance.id, _SSH_PORT) for instance in found if instance.private_address}


def region_of(zone: str) -> str:
    """Return the region of a zone, including local zones such as `us-west-2-lax-1a`.

    Raises:
        StateError: The text is not a zone.
    """
    found = _REGION.match(zone)
    if found is None:
        message = f"{zone!r} is not a zone"
        raise StateError(message, hint="`cloudgpu status --refresh` reads the nodes again")
    return found[0]
