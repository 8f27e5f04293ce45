"""The part of the composition that asks registries of containers, for plans and for runs."""

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
    """Built when first asked for."""

    clients: "Callable[[str], Clients]"
    clock: Clock
    environ: Mapping[str, str]

    @cached_property
    def logins(self) -> "RegistryLogins":
        """Logins for AWS's own registries."""
        from cloudgpu.app.runs.registry_logins import RegistryLogins

        return RegistryLogins(self.clients, self.clock)

    @cached_property
    def images(self) -> "RegistryImages":
        """What registries say of images, before anything is bought."""
        from cloudgpu.app.planning.registry.images import RegistryImages

        return RegistryImages(self.environ, self.logins)
