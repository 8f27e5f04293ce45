"""Asks the registry of a recipe's image, from the caller's machine, before anything is bought for it."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from cloudgpu.app.planning.registry import manifests
from cloudgpu.app.planning.registry.http import CERTIFICATES, RefusedError, UnreachableError, Web, json_of
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.image_name import ImageName, image_name
from cloudgpu.node.agent.fetch.http_request import Answer
from cloudgpu.plan.survey import ImageSeen
from cloudgpu.recipe.schema import Environment
from cloudgpu.run.logins import FetchLogin, Login, registry_login

_WITHIN_S: Final = 5.0


class RegistryImages:
    """Satisfies `surveying.AskRegistry`. An image is asked for once, however many plans name it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        fetch: FetchLogin,
        *,
        within_s: float = _WITHIN_S,
        certificates: Path = CERTIFICATES,
    ) -> None:
        self._environ, self._fetch = environ, fetch
        self._within_s, self._certificates = within_s, certificates
        self._known: dict[tuple[str, ...], ImageSeen] = {}

    def __call__(self, environment: Environment) -> ImageSeen:
        """What the registry says within 5 seconds; whatever goes wrong is `unknown`, with the reason."""
        container = environment.container
        if container is None:
            return ImageSeen("", "unknown", "the recipe has no container")
        key = (container.image, container.login or "", container.password or "", *environment.secrets)
        if key not in self._known:
            seen = self._in_time(container.image, environment)
            self._known[key] = replace(seen, on_loopback=image_name(container.image).on_loopback)
        return self._known[key]

    def _in_time(self, image: str, environment: Environment) -> ImageSeen:
        """Beside the caller: a name that nobody resolves is not bounded by the time limit of any socket."""
        said: list[ImageSeen] = []
        thread = threading.Thread(target=lambda: said.append(self._asked(image, environment)), daemon=True)
        thread.start()
        thread.join(self._within_s)
        late = f"{image_name(image).registry} did not answer within {self._within_s:g} s"
        return said[0] if said else ImageSeen(image, "unknown", late)

    def _asked(self, image: str, environment: Environment) -> ImageSeen:
        try:
            login, why = registry_login(environment, self._environ, self._fetch), ""
        except CloudGpuError as error:
            # Images that anybody may have are found without one.
            login, why = None, error.message
        name = image_name(image)
        try:
            return _looked_at(image, name, Web(name, login, self._within_s, self._certificates))
        except RefusedError:
            return ImageSeen(image, "unknown", why) if why else _refused(image, name, login)
        except UnreachableError as error:
            return ImageSeen(image, "unknown", str(error))


def _looked_at(image: str, name: ImageName, web: Web) -> ImageSeen:
    if name.digest:
        answer = web.get_by_digest("manifests", name.digest, manifests.ACCEPTED)
    else:
        answer = web.get(f"{name.path}/manifests/{name.tag}", manifests.ACCEPTED)
    if answer.status == HTTPStatus.NOT_FOUND and _is_registry(answer):
        return ImageSeen(image, "missing", f"{name.registry} has no {image}")
    top = _manifest(answer, name)
    if not manifests.is_index(top):
        return ImageSeen(image, "there", "", _made_for(top, web), manifests.packed_bytes(top))
    found = manifests.by_platform(top)
    own = found.get(manifests.MACHINE)
    return ImageSeen(image, "there", "", tuple(sorted(found)), _size(own, name, web) if own else None)


def _refused(image: str, name: ImageName, login: Login | None) -> ImageSeen:
    """Most registries answer so for what is not there too, so that nobody can guess names."""
    asked = "without a login" if login is None else f"to {login.user}"
    why = f"{name.registry} does not give {image} {asked}: it is not there, or asks for another login"
    return ImageSeen(image, "refused", why)


def _is_registry(answer: Answer) -> bool:
    """Whether a 404 is a registry's own, and not that of a proxy or a web page."""
    content = json_of(answer)
    listed = content.get("errors") if isinstance(content, dict) else None
    return bool(listed) or "docker-distribution-api-version" in answer.headers


def _manifest(answer: Answer, name: ImageName) -> dict[str, Any]:
    content = json_of(answer)
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise UnreachableError(f"{name.registry} was asked too often and answers later")
    if answer.status != HTTPStatus.OK:
        raise UnreachableError(f"{name.registry} answered {answer.status}")
    if not isinstance(content, dict) or not {"manifests", "config", "schemaVersion"} & set(content):
        raise UnreachableError(f"{name.registry} answered with something that is no manifest")
    return content


def _made_for(manifest: dict[str, Any], web: Web) -> tuple[str, ...]:
    """By the image's own configuration; an image whose registry keeps it back is judged by nobody."""
    digest = manifests.config_digest(manifest)
    try:
        answer = web.get_by_digest("blobs", digest) if digest else None
    except (RefusedError, UnreachableError):
        return ()
    made = manifests.platform(json_of(answer)) if answer is not None and answer.status == HTTPStatus.OK else ""
    return (made,) if made else ()


def _size(digest: str, name: ImageName, web: Web) -> int | None:
    try:
        answer = web.get_by_digest("manifests", digest, manifests.ACCEPTED)
        return manifests.packed_bytes(_manifest(answer, name))
    except (RefusedError, UnreachableError):
        return None
