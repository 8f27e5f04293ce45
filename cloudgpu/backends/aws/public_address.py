"""Determine this machine's public address, from which nodes accept SSH."""

import ipaddress
import urllib.request

from cloudgpu.errors import ConnectError

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"


def own_address() -> str:
    """Return this machine's public address, as seen by AWS, with the suffix `/32`.

    Raises:
        ConnectError: The service is unreachable or did not return an IPv4 address.
    """
    try:
        with urllib.request.urlopen(_ADDRESS_SERVICE, timeout=10) as response:
            # Reject an IPv6 address: with the suffix /32 it would admit an entire provider's network.
            return f"{ipaddress.IPv4Address(response.read(64).decode().strip())}/32"
    except (OSError, ValueError) as err:
        message = f"cannot determine this machine's public address from {_ADDRESS_SERVICE}"
        raise ConnectError(message, hint="specify your address: --ssh-cidr 203.0.113.7/32") from err
