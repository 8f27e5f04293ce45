"""What another node hands over: how it is asked for, by the one certificate and the token of this call."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any

from ..errors import AgentError


@dataclass(frozen=True)
class Peer:
    """The node that hands over. Its token is a secret.

    Attributes:
        url: `https://10.0.0.5:41234`.
    """

    url: str
    token: str
    context: ssl.SSLContext

    def __repr__(self) -> str:
        return f"Hand({self.url})"

    @property
    def headers(self) -> dict[str, str]:
        """What shows that the caller may ask."""
        return {"Authorization": f"Bearer {self.token}"}


def peer_of(spec: dict[str, Any]) -> Peer | None:
    """The node that a request names; None where it names none.

    Raises:
        AgentError: It makes no sense.
    """
    given = spec.get("hand")
    if not given:
        return None
    try:
        # Its address is in no certificate: there is one certificate in the world that is taken.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=str(given["cert"]))
        return Peer(str(given["url"]), str(given["token"]), context)
    except (KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise AgentError("hand: the other node's certificate makes no sense") from error
