"""Network addresses: how to reach a cluster's nodes, and this machine's public address, from which they accept SSH."""

import http.client
import ipaddress
import re
from collections.abc import Sequence, Set

from cloudgpu.aws.ec2.instances import Instance
from cloudgpu.errors import ConnectError, StateError
from cloudgpu.node.agent.fetch.bounded_http import Client
from cloudgpu.state.cluster_record import ClusterRecord

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"
_TIMEOUT_S = 10.0
_MOST_BYTES = 64
HEAD = 0
"""Index of the head node. With `publicAddress` set to `nat`, SSH to the other nodes goes through this node."""
_SSH_PORT = 22
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]+)+-[0-9]+")


def own_address() -> str:
    """Return this machine's public address, as seen by AWS, with the suffix `/32`."""
    try:
        answer = Client(_TIMEOUT_S, _MOST_BYTES).send(_ADDRESS_SERVICE, {}, guarded=False)
        # Reject an IPv6 address: with the suffix /32 it would admit an entire provider's network.
        return f"{ipaddress.IPv4Address(answer.body.decode().strip())}/32"
    except (OSError, ValueError, http.client.HTTPException) as err:
        message = f"cannot determine this machine's public address from {_ADDRESS_SERVICE}"
        raise ConnectError(message, hint="specify your address: --ssh-cidr 203.0.113.7/32") from err


def public_address_setting(record: ClusterRecord) -> str:
    """Return the program's `publicAddress` setting, which determines which of the nodes have a public address."""
    return record.placement.config.get("publicAddress") or "auto"


def private(record: ClusterRecord, instance_ids: Sequence[str]) -> Set[str]:
    """Return the IDs of the nodes without a public address: no node, all nodes, or all nodes except the head node."""
    by_exposure = {"private": instance_ids, "nat": instance_ids[HEAD + 1 :]}
    return frozenset(by_exposure.get(public_address_setting(record), ()))


def uses_session_manager(record: ClusterRecord) -> bool:
    """Return True if SSH to the nodes goes through Session Manager."""
    return record.placement.config.get("reach") == "ssm"


def session_manager_addresses(instances: Sequence[Instance]) -> dict[str, tuple[str, int]]:
    """Return an address (the instance ID) and the SSH port for every instance that has a private address."""
    return {instance.id: (instance.id, _SSH_PORT) for instance in instances if instance.private_address}


def region_of(zone: str) -> str:
    """Return the region of a zone, including local zones such as `us-west-2-lax-1a`."""
    match = _REGION.match(zone)
    if match is None:
        message = f"{zone!r} is not a zone name"
        raise StateError(message, hint="run `cloudgpu status --refresh` to update the recorded nodes")
    return match[0]
