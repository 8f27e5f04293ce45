"""Where a node of a cluster is to be reached, by the way that its program made it with. Pure."""

import re
from collections.abc import Sequence, Set

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.errors import StateError
from cloudgpu.state.records import ClusterRecord

HEAD = 0
"""Index of the node that alone has an Elastic IP where the others stand behind it."""
_SSH_PORT = 22
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+")


def way(record: ClusterRecord) -> str:
    """How the program that made this cluster lets its nodes be reached."""
    return record.config.get("publicAddress") or "auto"


def private(record: ClusterRecord, gang: Sequence[str]) -> Set[str]:
    """The nodes without a public address: all of them, or those behind the first one."""
    behind = {"private": gang, "nat": gang[HEAD + 1 :]}
    return frozenset(behind.get(way(record), ()))


def by_ssm(record: ClusterRecord) -> bool:
    """Whether Session Manager carries SSH to its nodes."""
    return record.config.get("reach") == "ssm"


def by_session(found: Sequence[Instance]) -> dict[str, tuple[str, int]]:
    """Session Manager takes an instance's id for its address."""
    return {one.id: (one.id, _SSH_PORT) for one in found if one.private_address}


def region_of(zone: str) -> str:
    """The region of a zone, also of one outside the region's own data centres such as `us-west-2-lax-1a`.

    Raises:
        StateError: It is no zone.
    """
    found = _REGION.match(zone)
    if found is None:
        message = f"{zone!r} is no zone"
        raise StateError(message, hint="`cloudgpu status --refresh` reads the nodes again")
    return found[0]
