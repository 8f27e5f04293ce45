"""Connection parameters for downloads from another node: URL, token, and pinned certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from ..errors import AgentError


@dataclass(frozen=True)
class Peer:
    """Another node, which serves the data. The token is a secret.

    Attributes:
        url: URL of the server, such as `https://10.0.0.5:41234`.
    """

    url: str
    token: str
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return f"Peer({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        """The authorization header."""
        return {"Authorization": f"Bearer {self.token}"}


def parse_peer(spec: dict[str, Any]) -> Peer | None:
    """Return the peer in a request, or None if there is none."""
    peer = spec.get("hand")
    if not peer:
        return None
    try:
        # The certificate does not contain the node's address, so trust only this certificate and check no host name.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=str(peer["cert"]))
        return Peer(str(peer["url"]), str(peer["token"]), context)
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise AgentError("hand: the other node's URL, token or certificate is invalid") from error
