"""The part of the composition root for container registries, used by plans and runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cloudgpu.clock import Clock

if TYPE_CHECKING:
    from cloudgpu.app.planning.registry.images import RegistryImages
    from cloudgpu.app.runs.registry_logins import RegistryLogins
    from cloudgpu.aws.session.session import Clients


@dataclass(frozen=True)
class RegistryWiring:
    """The collaborators for container registries, each built on first use."""

    clients: "Callable[[str], Clients]"
    clock: Clock
    environ: Mapping[str, str]

    @cached_property
    def logins(self) -> "RegistryLogins":
        """The provider of logins to AWS container registries."""
        from cloudgpu.app.runs.registry_logins import RegistryLogins

        return RegistryLogins(self.clients, self.clock)

    @cached_property
    def images(self) -> "RegistryImages":
        """The client that looks up container images in their registries before any nodes are launched."""
        from cloudgpu.app.planning.registry.images import RegistryImages

        return RegistryImages(self.environ, self.logins)
