"""Fetch ECR logins with AWS credentials. A login is valid for 12 hours and has the caller's permissions."""

import base64
from typing import Final

from cloudgpu.aws.session.errors import convert_response_errors
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError

_RENEW_AFTER_S: Final = 11 * 3600.0


def ecr_login(clients: Clients) -> tuple[str, str]:
    """Fetch a username and password for all ECR registries in this region that the caller may read."""
    with convert_response_errors(f"fetching a login for ECR in {clients.region}"):
        response = clients.client("ecr").get_authorization_token()
        tokens = [
            str(authorization.get("authorizationToken", ""))
            for authorization in response.get("authorizationData") or ()
        ]
        user, colon, password = base64.b64decode(tokens[0]).decode().partition(":") if tokens else ("", "", "")
    if not (colon and password):
        raise CloudError(f"ECR in {clients.region} returned no login", hint="try again")
    return user, password


class EcrLogins:
    """Cache of ECR logins by region. Renews a login before it expires because a run may wait for capacity for days."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[str, str]]] = {}

    def login(self, clients: Clients) -> tuple[str, str]:
        """Return a login that is valid for at least another hour."""
        fetched, login = self._known.get(clients.region, (0.0, ("", "")))
        if not login[1] or self._clock.monotonic() - fetched > _RENEW_AFTER_S:
            login = ecr_login(clients)
            self._known[clients.region] = (self._clock.monotonic(), login)
        return login
