"""The local image that a recipe's setup makes of the recipe's image: its container, its commit, and its removal.

The setup script runs in a container of the recipe's image. The files of this container become the local image, in which
the ranks of later runs start. Nothing remains of a setup that fails or is interrupted, whatever interrupts it.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Callable, Iterator

from ..untrusted_data import AgentError, raise_malformed_as, require_object
from ..watchdog import WatchdogProcess
from .docker_api import DockerApi, DockerApiError, DockerEndpoint
from .run_container import ContainerSpec, RankContainer, setup_image_name

LABEL = "cloudgpu.recipe"
"""Label of the local images, with the name of the recipe."""
_COMMIT_S = 3600.0
"""Time limit for a commit, in seconds. The engine sends nothing while it writes tens of gigabytes."""
_OWN_S = 300.0
_REMOVE_S = 120.0
_PENDING, _SETTLED, _COMPLETE = b"pending", b"settled", b"complete"
"""States of a setup, for its watchdog: the engine may be creating something; it is not; the image is complete."""


@dataclass(frozen=True)
class SetupContainerSpec:
    """The container that runs a setup.

    Attributes:
        image: Image that the container is started from, with the digest if it is known.
        container: The container.
        script: Path of the script on the node, in a directory that is mounted in the container.
        run_script: Command that runs the script in the container.
        recipe: Name of the recipe.
    """

    image: str
    container: ContainerSpec
    script: str
    run_script: tuple[str, ...]
    recipe: str


class SetupImage:
    """The local image of one setup.

    The caller holds the setup's lock. If this process dies, a watchdog removes the container and the image, and
    releases the lock afterwards, so that no other attempt uses their names before that.
    """

    def __init__(self, spec: SetupContainerSpec, key: str, lock: int) -> None:
        self._spec, self._lock = spec, lock
        self.name = setup_image_name(key)
        self._engine = _engine(spec)
        self._container = RankContainer(spec.container)

    def exists(self) -> bool:
        """Return True if the image is on this node."""
        return self._engine.image(self.name) is not None

    @contextmanager
    def container(self, folder: str) -> Iterator[Callable[[], None]]:
        """Run the container during the block, and provide a function that commits it as the image.

        If the block fails, the image is removed too.

        Args:
            folder: Directory of the setup.
        """
        self._remove_image()  # an interrupted setup may have left it
        watchdog = WatchdogProcess(self._clean_up, keep=(self._lock,))
        watchdog.send(_PENDING)
        try:
            self._container.create(folder)
            watchdog.send(_SETTLED)
            # An interrupted setup may have left files of another user in the work directory.
            self._container.restore_ownership(_OWN_S)
            yield lambda: self._commit(watchdog)
            watchdog.send(_COMPLETE)
        except BaseException:
            self._container.remove()
            with suppress(AgentError):
                self._remove_image()
            raise
        finally:
            removed = self._container.remove()
            # If a call to the engine failed or timed out, the engine may still create what it was asked for.
            if removed and watchdog.last != _PENDING:
                watchdog.dismiss()
            else:
                watchdog.close()

    def _commit(self, watchdog: WatchdogProcess) -> None:
        """Keep the container's files as the image, with the configuration of the image that it was started from."""
        self._container.restore_ownership(_OWN_S)
        config = kept_config(self._engine.image(self._spec.image), self._spec.recipe)
        watchdog.send(_PENDING)
        try:
            self._engine.commit(self._spec.container.name, self.name, config, timeout_s=_COMMIT_S)
        except DockerApiError as error:
            hint = "use a larger disk: resources.disk" if "no space left" in str(error) else error.hint
            raise AgentError(f"cannot save the setup as {self.name}: {error}", hint=hint) from error
        watchdog.send(_SETTLED)

    def _remove_image(self) -> None:
        self._engine.remove_image(self.name, timeout_s=_REMOVE_S)

    def _clean_up(self, messages: list[bytes]) -> None:
        """Remove the container, and the image unless it is complete, after the agent has died."""
        state = messages[-1] if messages else _PENDING
        also = None if state == _COMPLETE else self._remove_image
        self._container.remove_with_retries(also, pending=state == _PENDING)


def kept_config(image: dict[str, Any] | None, recipe: str) -> dict[str, Any]:
    """Return the configuration of the local image: that of the recipe's image, and the label.

    The engine takes what the configuration leaves out from the container. So an image without an entry point needs an
    empty one, or it would get the one that keeps the container running.
    """
    if image is None:
        raise AgentError("the image of the setup was removed from this node", hint="run the command again")
    with raise_malformed_as(lambda why: AgentError(f"unexpected image description from the Docker engine: {why}")):
        config = require_object(image.get("Config") or {})
        labels = require_object(config.get("Labels") or {})
    return {**config, "Entrypoint": config.get("Entrypoint") or [], "Labels": {**labels, LABEL: recipe}}


def remove_unused_image(spec: SetupContainerSpec, key: str) -> bool:
    """Remove the image of another setup. Return False if a container uses it."""
    return _engine(spec).remove_image(setup_image_name(key), timeout_s=_REMOVE_S)


def _engine(spec: SetupContainerSpec) -> DockerApi:
    return DockerApi(DockerEndpoint(spec.container.client[0], spec.container.client[-1]))
