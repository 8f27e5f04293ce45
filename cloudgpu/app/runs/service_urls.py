"""Services as whoever opens them sees them: which ones a run has, their tokens, their addresses in a browser."""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cloudgpu import files
from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.paths import Home, unwritable
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.service import Endpoint, SideService
from cloudgpu.recipe.service_rules import endpoints
from cloudgpu.state.records import Records

_TOKEN_LETTERS = 40
_KEY_BYTES = 32


@dataclass(frozen=True)
class Served:
    """One service of a run.

    Attributes:
        main: Whether the run consists of it; else it is one beside the ranks.
        bound: Whether its command is told the address to listen on, so that it is there and nowhere else.
    """

    name: str
    endpoint: Endpoint
    token: str
    main: bool
    bound: bool = False

    def url(self, local: int) -> str:
        """What a browser opens on this machine."""
        return f"http://127.0.0.1:{local}{self.endpoint.page.replace('{token}', self.token)}"

    def __repr__(self) -> str:
        return f"Served({self.name!r}, port={self.endpoint.port})"


def services_of(recipe: Recipe, run_id: str, home: Home) -> tuple[Served, ...]:
    """The services of a run, with the tokens that they were given.

    Raises:
        StateError: The key that tokens are made of cannot be read or written.
    """
    return tuple(
        Served(
            name,
            one,
            _token(home.service_key, run_id, name) if one.token else "",
            main=one is recipe.launch.service,
            bound="{service.address}" in (one.command if isinstance(one, SideService) else recipe.launch.command),
        )
        for _, name, one in endpoints(recipe)
    )


def services_on(records: Records, cluster: str, home: Home) -> tuple[Served, ...]:
    """The services of all runs that go on there.

    Raises:
        StateError: As `services_of` says.
    """
    runs = [run for run in records.runs() if run.cluster == cluster and run.state == "running" and run.ended_at is None]
    return tuple(one for run in runs for one in services_of(recipe_of(run), run.run_id, home))


def secrets_of(services: Sequence[Served]) -> dict[str, str]:
    """Variable -> token, for the processes of the run."""
    return {one.endpoint.token: one.token for one in services if one.endpoint.token}


def hidden(text: str, services: Sequence[Served]) -> str:
    """A text without the tokens, as long as it was: logs are kept by byte offset."""
    for token in filter(None, (one.token for one in services)):
        text = text.replace(token, "*" * len(token))
    return text


def _token(key: Path, run_id: str, name: str) -> str:
    """Made of a key of the home: so it is written nowhere, and `attach` knows it all the same."""
    return hmac.new(_ensured(key), f"{run_id}/{name}".encode(), hashlib.sha256).hexdigest()[:_TOKEN_LETTERS]


def _ensured(key: Path) -> bytes:
    """The key; made by whoever needs it first."""
    try:
        with contextlib.suppress(FileExistsError):
            key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Written whole under another name first: who finds it must not find half of it.
            made = key.with_name(f".{key.name}.{os.getpid()}")
            files.create(made, secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(made, key)
            finally:
                made.unlink()
        return files.read_bytes(key, files.KEY_BYTES)
    except OSError as err:
        raise unwritable(key, err) from err
