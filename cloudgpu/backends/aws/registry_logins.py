"""Fetch logins for ECR registries. Self-managed hosts may use the registries too."""

from collections.abc import Callable

from cloudgpu.aws.ec2.registries import EcrLogins
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.run.containers.logins import RegistryLogin


class RegistryLogins:
    """A `FetchLogin` for ECR registries, which connects to AWS when the first login is requested."""

    def __init__(self, clients: Callable[[str], Clients], clock: Clock) -> None:
        self._clients = clients
        self._logins = EcrLogins(clock)

    def __call__(self, region: str) -> RegistryLogin:
        """Return a login for the registries of a region."""
        return RegistryLogin(*self._logins.login(self._clients(region)))
