"""Determine this machine's public address, from which nodes accept SSH."""

import http.client
import ipaddress

from cloudgpu.errors import ConnectError
from cloudgpu.node.agent.fetch.http_request import Client

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"
_TIMEOUT_S = 10.0
_MOST_BYTES = 64


def own_address() -> str:
    """Return this machine's public address, as seen by AWS, with the suffix `/32`."""
    try:
        answer = Client(_TIMEOUT_S, _MOST_BYTES).send(_ADDRESS_SERVICE, {}, guarded=False)
        # Reject an IPv6 address: with the suffix /32 it would admit an entire provider's network.
        return f"{ipaddress.IPv4Address(answer.body.decode().strip())}/32"
    except (OSError, ValueError, http.client.HTTPException) as err:
        message = f"cannot determine this machine's public address from {_ADDRESS_SERVICE}"
        raise ConnectError(message, hint="specify your address: --ssh-cidr 203.0.113.7/32") from err
