"""Logins for AWS's own registries, fetched when a recipe's image lies in one, whatever the nodes are."""

from collections.abc import Callable

from cloudgpu.aws.ec2.registries import EcrLogins
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.errors import UsageError
from cloudgpu.run.logins import Login


class RegistryLogins:
    """Satisfies `run.logins.FetchLogin`. AWS is connected to when the first login is wanted."""

    def __init__(self, clients: Callable[[str], Clients], clock: Clock) -> None:
        self._clients = clients
        self._logins = EcrLogins(clock)

    def __call__(self, region: str) -> Login:
        """A login for the registries of a region.

        Raises:
            CloudError: No credentials, no permission, or ECR cannot be reached.
        """
        return Login(*self._logins.login(self._clients(region)))


def none_fetched(region: str) -> Login:
    """Where nobody can fetch one.

    Raises:
        UsageError: Always.
    """
    message = f"the image lies in ECR in {region}, and no AWS credentials are at hand"
    raise UsageError(message, hint="set environment.container.login and password")
