"""The services of a run, with their access tokens and browser addresses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.node.agent.masking import Mask
from cloudgpu.paths import Home
from cloudgpu.recipe.rules.services import endpoints
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.scripts import variable_name
from cloudgpu.recipe.sections.service import Endpoint, SideService
from cloudgpu.state.home_key import derive
from cloudgpu.state.record_store import RecordStore

_TOKEN_LETTERS = 40


@dataclass(frozen=True)
class RunService:
    """One service of a run.

    Attributes:
        main: Whether this is the run's main service rather than a side service that runs next to the ranks.
        bound: Whether the command contains `{service.address}`, so that the service listens only on that address.
    """

    name: str
    endpoint: Endpoint
    token: str
    main: bool
    bound: bool = False

    def url(self, local: int) -> str:
        """Return the address to open in a browser on this machine."""
        return f"http://127.0.0.1:{local}{self.endpoint.page.replace('{token}', self.token)}"

    def __repr__(self) -> str:
        return f"RunService({self.name!r}, port={self.endpoint.port})"


def services_of(recipe: Recipe, run_id: str, home: Home) -> tuple[RunService, ...]:
    """Return the services of a run with their tokens.

    Raises:
        StateError: The key from which tokens are derived cannot be read or written.
    """
    return tuple(
        RunService(
            name,
            endpoint,
            _token(home.service_key, run_id, name) if endpoint.token else "",
            main=endpoint is recipe.launch.service,
            bound=_is_bound(endpoint.command if isinstance(endpoint, SideService) else recipe.launch.text),
        )
        for _, name, endpoint in endpoints(recipe)
    )


def _is_bound(text: str) -> bool:
    """Return True if a command or script listens on the address that cloudgpu chose."""
    return "{service.address}" in text or variable_name("service.address") in text


def services_on(records: RecordStore, cluster: str, home: Home) -> tuple[RunService, ...]:
    """Return the services of all runs that are running on a cluster.

    Raises:
        StateError: The key cannot be read or written (see `services_of`), or a run's record contains no valid recipe.
    """
    runs = [run for run in records.runs() if run.cluster == cluster and run.state == "running" and run.ended_at is None]
    return tuple(service for run in runs for service in services_of(recipe_of(run), run.run_id, home))


def token_variables(services: Sequence[RunService]) -> dict[str, str]:
    """Return the tokens by environment variable, for the processes of the run."""
    return {service.endpoint.token: service.token for service in services if service.endpoint.token}


def mask_tokens(text: str, services: Sequence[RunService]) -> str:
    """Mask the tokens in a text without changing its length, because logs are addressed by byte offset."""
    mask = Mask(service.token for service in services)
    return mask(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def _token(key: Path, run_id: str, name: str) -> str:
    """Derive a token from a key in the state home. `attach` recomputes the token, so the token is never stored."""
    return derive(key, f"{run_id}/{name}").hex()[:_TOKEN_LETTERS]
