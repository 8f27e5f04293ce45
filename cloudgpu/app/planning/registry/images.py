"""Look up a recipe's image in its registry, from the caller's machine, before anything is launched."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from cloudgpu.app.planning.registry import manifests
from cloudgpu.app.planning.registry.http import (
    CERTIFICATES,
    RegistryClient,
    RegistryDeniedError,
    UnreachableError,
    json_body,
)
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.image_name import ImageName, parse_image_name
from cloudgpu.node.agent.fetch.http_request import SourceResponse
from cloudgpu.plan.named_resources import ImageSeen
from cloudgpu.recipe.schema import Environment
from cloudgpu.run.containers.logins import FetchLogin, RegistryLogin, registry_login

_WITHIN_S: Final = 5.0


class RegistryImages:
    """Implements `preflight.AskRegistry`. Each image is looked up once."""

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
        """Look up the image for at most `within_s` seconds. If the lookup fails, return `unknown` with the reason."""
        container = environment.container
        if container is None:
            return ImageSeen("", "unknown", "the recipe has no container")
        key = (container.image, container.login or "", container.password or "", *environment.secrets)
        if key not in self._known:
            seen = self._within_time(container.image, environment)
            self._known[key] = replace(seen, on_loopback=parse_image_name(container.image).on_loopback)
        return self._known[key]

    def _within_time(self, image: str, environment: Environment) -> ImageSeen:
        """Look up the image in a thread, because socket timeouts do not limit name resolution."""
        results: list[ImageSeen] = []
        thread = threading.Thread(target=lambda: results.append(self._look_up(image, environment)), daemon=True)
        thread.start()
        thread.join(self._within_s)
        timed_out = f"{parse_image_name(image).registry} did not respond within {self._within_s:g} s"
        return results[0] if results else ImageSeen(image, "unknown", timed_out)

    def _look_up(self, image: str, environment: Environment) -> ImageSeen:
        try:
            login, why = registry_login(environment, self._environ, self._fetch), ""
        except CloudGpuError as error:
            # Public images can be looked up without a login.
            login, why = None, error.message
        name = parse_image_name(image)
        try:
            return _described(image, name, RegistryClient(name, login, self._within_s, self._certificates))
        except RegistryDeniedError:
            return ImageSeen(image, "unknown", why) if why else _refused(image, name, login)
        except UnreachableError as error:
            return ImageSeen(image, "unknown", str(error))


def _described(image: str, name: ImageName, client: RegistryClient) -> ImageSeen:
    if name.digest:
        response = client.get_by_digest("manifests", name.digest, manifests.ACCEPTED_MEDIA_TYPES)
    else:
        response = client.get(f"{name.path}/manifests/{name.tag}", manifests.ACCEPTED_MEDIA_TYPES)
    if response.status == HTTPStatus.NOT_FOUND and _is_registry(response):
        return ImageSeen(image, "missing", f"image {image} does not exist in {name.registry}")
    top = _manifest(response, name)
    if not manifests.is_index(top):
        return ImageSeen(image, "there", "", _platforms(top, client), manifests.packed_bytes(top))
    digests = manifests.digests_by_platform(top)
    digest = digests.get(manifests.NODE_PLATFORM)
    return ImageSeen(image, "there", "", tuple(sorted(digests)), _size(digest, name, client) if digest else None)


def _refused(image: str, name: ImageName, login: RegistryLogin | None) -> ImageSeen:
    """Describe a denied request. To hide private names, most registries also deny access to nonexistent images."""
    credentials = "without a login" if login is None else f"for {login.user}"
    cause = "the image does not exist or requires a different login"
    why = f"{name.registry} denies access to {image} {credentials}: {cause}"
    return ImageSeen(image, "refused", why)


def _is_registry(response: SourceResponse) -> bool:
    """Return True if a 404 comes from a registry rather than from a proxy or an ordinary web server."""
    content = json_body(response)
    errors = content.get("errors") if isinstance(content, dict) else None
    return bool(errors) or "docker-distribution-api-version" in response.headers


def _manifest(response: SourceResponse, name: ImageName) -> dict[str, Any]:
    content = json_body(response)
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise UnreachableError(f"{name.registry} responded with status 429 (too many requests); try again later")
    if response.status != HTTPStatus.OK:
        raise UnreachableError(f"{name.registry} returned status {response.status}")
    if not isinstance(content, dict) or not {"manifests", "config", "schemaVersion"} & set(content):
        raise UnreachableError(f"{name.registry} returned something other than a manifest")
    return content


def _platforms(manifest: dict[str, Any], client: RegistryClient) -> tuple[str, ...]:
    """Return the platform from the image's configuration; empty if the registry does not return it."""
    digest = manifests.config_digest(manifest)
    try:
        response = client.get_by_digest("blobs", digest) if digest else None
    except (RegistryDeniedError, UnreachableError):
        return ()
    platform = (
        manifests.platform(json_body(response)) if response is not None and response.status == HTTPStatus.OK else ""
    )
    return (platform,) if platform else ()


def _size(digest: str, name: ImageName, client: RegistryClient) -> int | None:
    try:
        response = client.get_by_digest("manifests", digest, manifests.ACCEPTED_MEDIA_TYPES)
        return manifests.packed_bytes(_manifest(response, name))
    except (RegistryDeniedError, UnreachableError):
        return None
